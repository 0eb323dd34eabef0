"""Write the generated pages of docs/: ``python docs/generate.py`` (``--check`` compares only; exit 1 when out of step)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parent
MSG = DOCS.parent / "msg"

MESSAGES_INTRO = """# Messages

Package `triptych_ros`. Generated from `msg/` by `docs/generate.py`; the comments there are the documentation.

Every text and array is bounded: nothing a model says can grow a message without limit. `NaN` in a number means unknown and is
treated as unsafe by every receiver.

## End-to-end protection

`sequence_counter` counts messages of one sender modulo 256. `crc` is CRC-32 (zlib polynomial) over a canonical encoding of the
content, so that it does not depend on padding bytes of the middleware's serialisation: fields in the order of
`triptych.contract` records, `crc` left out; integers and booleans as little-endian int64, floats as IEEE-754 double, text as
UTF-8 after an uint32 length, sequences after an uint32 count, nested records inline. Reference implementation:
`triptych.contract.e2e`.
"""


def messages_page() -> str:
    """Markdown of all message definitions."""
    parts = [MESSAGES_INTRO]
    for path in sorted(MSG.glob("*.msg")):
        parts.append(f"\n## {path.stem}\n\n```\n{path.read_text().strip()}\n```\n")
    return "".join(parts)


def parameters_page() -> str:
    """Markdown of all node parameters, from the one schema."""
    from triptych.nodes.params import markdown

    return markdown()


def result_page() -> str:
    """Markdown of result.json, from its model."""
    from triptych.report.schema import markdown

    return markdown()


PAGES: dict[str, Callable[[], str]] = {
    "messages.md": messages_page,
    "parameters.md": parameters_page,
    "result.md": result_page,
}


def main(arguments: list[str]) -> int:
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text)
    if stale:
        print(("out of step: " if "--check" in arguments else "written: ") + ", ".join(stale))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
