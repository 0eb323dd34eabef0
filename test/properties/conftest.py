"""The property tests use the supervisor's rig; examples are the same on every run."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

for folder in ("supervisor", "tiers"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))

settings.register_profile(
    "house",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=20,
    phases=[Phase.explicit, Phase.generate],  # no shrinking: a bounded time also when something is broken
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("house")
