"""Raw images between two processes, with our middleware settings and with defaults: ``python bench/transport.py``.

Result: ``transport.json``. The limit is on lost frames of 1920x1080 at 20 Hz with our settings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import environment, write

from triptych import dds

SIZES = ((1280, 720), (1920, 1080))
LOST_LIMIT = 0.001
OURS = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")


def measure(size: tuple[int, int], count: int, rate_hz: float, *, profile: bool, malloc: bool) -> dict[str, Any]:
    """One run of ``triptych.nodes.transport_probe``."""
    env = environment(dds.claim_domain())
    if not profile:
        env = {k: v for k, v in env.items() if k not in OURS}
    if not malloc:
        env = {k: v for k, v in env.items() if not k.startswith("MALLOC_")}
    command = [
        sys.executable,
        "-m",
        "triptych.nodes.transport_probe",
        "--width",
        str(size[0]),
        "--height",
        str(size[1]),
    ]
    command += ["--rate-hz", str(rate_hz), "--count", str(count)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=count / rate_hz + 60)
    if done.returncode != 0 or not done.stdout.strip():
        raise SystemExit(f"transport probe failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}.")
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    row["lost_share"] = round(1 - row["received"] / row["sent"], 5) if row["sent"] else 1.0
    return row


def main() -> int:
    """Entry point; exit code 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench_results/transport.json"))
    parser.add_argument("--count", type=int, default=1200)
    parser.add_argument("--rate-hz", type=float, default=20.0)
    arguments = parser.parse_args()
    rows = []
    for size in SIZES:
        for name, profile, malloc in (("ours", True, True), ("profile only", True, False), ("defaults", False, False)):
            row = {
                "settings": name,
                **measure(size, arguments.count, arguments.rate_hz, profile=profile, malloc=malloc),
            }
            rows.append(row)
            print(f"{size[0]}x{size[1]} {name}: lost {row['lost_share']:.2%}, median {row['median_ms']} ms", flush=True)
    ours = next(r for r in rows if r["settings"] == "ours" and r["width"] == 1920)
    limits = {
        "lost share of 1920x1080 frames": {
            "value": ours["lost_share"],
            "limit": LOST_LIMIT,
            "held": ours["lost_share"] < LOST_LIMIT,
        }
    }
    write(arguments.out, {"rows": rows, "limits": limits}, {"count": arguments.count, "rate_hz": arguments.rate_hz})
    return 0 if all(row["held"] for row in limits.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
