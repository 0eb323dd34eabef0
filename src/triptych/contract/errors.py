"""One error type for everything a user can get wrong: it says where, what and what to do."""

from __future__ import annotations


class TriptychError(Exception):
    """A user-facing error that prints as one sentence.

    Args:
        problem: what is wrong, without a final full stop.
        where: file, topic or parameter it was found in.
        field: the field of that file, if any.
        value: the offending value; shortened to 80 characters.
        remedy: what to do about it, as an imperative.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: object = None,
        field: str | None = None,
        value: object = None,
        remedy: str | None = None,
    ) -> None:
        self.problem, self.where, self.field, self.value, self.remedy = problem, where, field, value, remedy
        parts = [f"{where}: " if where is not None else "", f"{field}: " if field else "", problem]
        if value is not None:
            text = repr(value)
            parts.append(f" (got {text if len(text) <= 80 else text[:77] + '...'})")
        if remedy:
            parts.append(f"; {remedy}")
        super().__init__("".join(parts) + ".")


class EngineError(TriptychError):
    """An engine file, manifest or inference that cannot be trusted."""


class InputError(TriptychError):
    """A frame, recording or message that cannot be used."""


class ConfigError(TriptychError):
    """A parameter or configuration file that is out of range or malformed."""
