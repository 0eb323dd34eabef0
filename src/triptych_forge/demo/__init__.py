"""The whole tool chain on a small case: ``triptych forge demo``."""
