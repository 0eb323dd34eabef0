"""Looks at all that the real supervisor can come to in an abstract world; reports the first step that must not be.

``triptych verify-supervisor`` runs it; ``docs/verification.md`` says what it shows and what it does not.
"""
