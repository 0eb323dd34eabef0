"""``python -m triptych``: the same as the command ``triptych``."""

from triptych.cli import main

if __name__ == "__main__":
    main()
