"""All benches in turn: latency under full load, transport, reaction to faults. ``--quick`` takes fewer samples.

Writes one JSON file each and ``summary.json`` with every limit, the value measured and whether it was held. Measure on
a machine that does nothing else; ``triptych doctor`` says whether it does. Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHES: dict[str, tuple[list[str], list[str]]] = {
    "latency": (["--seconds", "120", "--bare-seconds", "30"], ["--seconds", "30", "--bare-seconds", "10"]),
    "transport": (["--count", "1200"], ["--count", "200"]),
    "faults": (["--trials", "30"], ["--trials", "5"]),
}
"""Name -> options of a full and of a quick run."""


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench_results"), help="folder for the JSON files")
    parser.add_argument("--quick", action="store_true", help="fewer samples: a look, not a figure to quote")
    parser.add_argument("--only", choices=sorted(BENCHES), action="append", help="leave out the others")
    arguments = parser.parse_args()
    summary: dict[str, dict[str, object]] = {}
    failed = False
    for name, (full, quick) in BENCHES.items():
        if arguments.only and name not in arguments.only:
            continue
        print(f"== {name}", flush=True)
        out = arguments.out / f"{name}.json"
        out.unlink(missing_ok=True)
        options = quick if arguments.quick else full
        code = subprocess.call([sys.executable, str(HERE / f"{name}.py"), *options, "--out", str(out)])
        failed |= code != 0
        if out.exists():
            summary.update(json.loads(out.read_text())["limits"])
    arguments.out.mkdir(parents=True, exist_ok=True)
    fresh = arguments.out / "summary.json.tmp"
    fresh.write_text(json.dumps(summary, indent=1) + "\n")
    os.replace(fresh, arguments.out / "summary.json")
    print("== summary")
    for name, row in summary.items():
        print(f"{'ok  ' if row['held'] else 'MISS'} {name}: {row['value']} (limit {row['limit']})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
