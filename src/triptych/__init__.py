"""Triptych: three model tiers and a supervisor for vision-language models on vehicles."""

import os

__version__ = "0.1.0"

# OpenCV reads these when it is loaded, and looks at a picture's sides before it makes room for it: a megabyte of PNG
# can claim gigabytes. The greatest side is triptych.contract.frame.MAX_SIDE_PX. A user's own setting wins.
for _side in ("WIDTH", "HEIGHT"):
    os.environ.setdefault(f"OPENCV_IO_MAX_IMAGE_{_side}", "8192")
