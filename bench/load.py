"""A stand-in for a VLM tier that is not built yet: the same placement, the same duty, no answers.

``python bench/load.py distilled`` computes on one thread for 60 % of each period of that tier.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from triptych.contract import BUDGETS, Tier
from triptych.nodes import realtime

SHARE = 0.6


def main() -> None:
    """Entry point; runs until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=["distilled", "full"])
    tier = Tier[parser.parse_args().tier.upper()]
    realtime.apply(tier.key)
    period_s = BUDGETS[tier].period_s
    a = np.random.default_rng(1).random((192, 192), dtype=np.float32)
    while True:
        began, cpu = time.monotonic(), time.thread_time()
        while time.thread_time() - cpu < SHARE * period_s:
            a = np.tanh(a @ a * 1e-3)
        time.sleep(max(0.0, began + period_s - time.monotonic()))


if __name__ == "__main__":
    main()
