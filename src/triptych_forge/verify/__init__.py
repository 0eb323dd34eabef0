"""Fidelity: does an engine still say what the one it was made from says? Two gates, and why not.

:mod:`.conversion` compares engines of the same numerics, :mod:`.compression` a compressed one with its original,
:mod:`.classify` names the kind of an error with its evidence, :mod:`.command` is ``triptych forge verify``.
"""
