"""FFmpeg reads its log level once, at its first use: set as the product sets it, before any test makes a video."""

import triptych.replay.video  # noqa: F401
