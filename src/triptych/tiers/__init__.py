"""One tier: newest-frame mailbox, engine, deadline. Used three times."""

from triptych.tiers.core import JITTER_SHARE, PUBLISH_MARGIN_S, REPEAT_LIMIT, TierCore, TierCounters
from triptych.tiers.tier import SelfTest, Tier

__all__ = ["JITTER_SHARE", "PUBLISH_MARGIN_S", "REPEAT_LIMIT", "SelfTest", "Tier", "TierCore", "TierCounters"]
