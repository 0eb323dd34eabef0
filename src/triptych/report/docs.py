"""docs/result.md and docs/result-schema.json, generated from the model of ``result.json``.

``python -m triptych.report.docs`` in a checkout writes both; a test keeps them in step.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from pathlib import Path

from triptych.contract import Tier
from triptych.report.schema import SCHEMA_VERSION, Record, ResultJson, json_schema, models, write_text
from triptych.report.summary import Limits, summarise

_NAMES = {float: "number", int: "integer", bool: "boolean", str: "text", type(None): "null"}


def markdown() -> str:
    """The documentation of ``result.json``."""
    parts = [
        "# result.json",
        "",
        "<!-- Generated from src/triptych/report/schema.py by `python -m triptych.report.docs`; change it there. -->",
        "",
        f"Every run leaves a `result.json` (schema version {SCHEMA_VERSION}) beside its `report.html`. The JSON schema",
        "is in [result-schema.json](result-schema.json). Times are seconds since the start of the run or milliseconds,",
        "as the name says; numbers are always finite, what could not be measured is `null`. Percentiles are",
        "nearest-rank: a value that occurred.",
        "",
        "Versioning: a field that is added raises the minor number, one that is removed or changes its meaning the",
        "major one. Refuse another major number and ignore fields you do not know.",
        "",
        "## When the contract held",
        "",
        *_verdict(),
        "",
        "### Limits",
        "",
        "| limit | default | meaning |",
        "|---|---|---|",
        *_limits(),
        "",
        "The budgets, periods and greatest ages are the run's own (`tiers.*.budget_ms` and so on).",
        "",
        "## Fields",
    ]
    for model in models():
        title = "The file" if model is ResultJson else model.__name__
        parts += ["", f"### {title}", "", _sentence(model), "", "| field | type | meaning |", "|---|---|---|"]
        for name, field in model.model_fields.items():
            parts.append(f"| `{name}` | {_type(field.annotation)} | {_cell(field.description or '')} |")
    return "\n".join(parts) + "\n"


def _verdict() -> list[str]:
    """What ``contract_held`` means, from the docstring of :func:`summarise`: the one place it is written."""
    text = inspect.getdoc(summarise) or ""
    body = text[text.index("``contract_held``") : text.index("Args:")].strip()
    body = body.replace(":class:`Limits`", "`Limits`").replace("``", "`").replace("`limits.", "`")
    return body.splitlines()


def _limits() -> list[str]:
    described = _attributes(inspect.getdoc(Limits) or "")
    rows = []
    for field in dataclasses.fields(Limits):
        value = getattr(Limits(), field.name)
        if isinstance(value, dict):
            value = ", ".join(f"{tier.key} {share:g}" for tier, share in value.items() if isinstance(tier, Tier))
        rows.append(f"| `{field.name}` | {value} | {_cell(described[field.name])} |")
    return rows


def _attributes(docstring: str) -> dict[str, str]:
    section = docstring[docstring.index("Attributes:") :].splitlines()[1:]
    found: dict[str, str] = {}
    name = ""
    for line in section:
        match = re.match(r"    (\w+): (.*)", line)
        if match:
            name = match.group(1)
            found[name] = match.group(2)
        elif name and line.strip():
            found[name] += " " + line.strip()
    return {
        key: re.sub(r":class:`([^`]+)`", lambda m: f"`{m.group(1).split('.')[-1]}`", text).replace("``", "`")
        for key, text in found.items()
    }


def _sentence(model: type[Record]) -> str:
    return (inspect.getdoc(model) or "").replace("``", "`")


def _type(annotation: object) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(argument) for argument in arguments)
    if origin is typing.Literal:
        return "one of " + ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"object: {_type(arguments[0])} to {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return _NAMES[annotation]  # type: ignore[index]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write(folder: Path) -> None:
    """Write both files into ``folder``."""
    write_text(folder / "result.md", markdown())
    write_text(folder / "result-schema.json", json_schema())


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[3] / "docs")
