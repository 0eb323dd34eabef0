"""The timing contract as data: one row per tier, one place."""

from __future__ import annotations

import math
from dataclasses import dataclass

from triptych.contract.errors import ConfigError
from triptych.contract.terms import Tier


@dataclass(frozen=True, slots=True)
class Budget:
    """Time limits of one tier.

    Attributes:
        budget_s: source stamp to published result.
        keep_s: greatest age at which a result may still be repeated as LAST_FRAME.
        period_s: a result is due at least this often while the tier is active.

    Raises:
        ConfigError: if a value is not finite and positive, or ``keep_s`` is below ``budget_s``.
    """

    budget_s: float
    keep_s: float
    period_s: float

    def __post_init__(self) -> None:
        for name in ("budget_s", "keep_s", "period_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError("must be finite and above 0", field=name, value=value, remedy="give seconds")
        if self.keep_s < self.budget_s:
            raise ConfigError(f"must not be below budget_s ({self.budget_s})", field="keep_s", value=self.keep_s)


BUDGETS: dict[Tier, Budget] = {
    Tier.DETECTOR: Budget(budget_s=0.030, keep_s=0.100, period_s=0.050),
    Tier.DISTILLED: Budget(budget_s=0.200, keep_s=1.0, period_s=0.200),
    Tier.FULL: Budget(budget_s=2.0, keep_s=5.0, period_s=2.0),
}

FUTURE_TOLERANCE_S = 0.005
"""A source stamp further ahead of our clock than this is a fault, not data."""
