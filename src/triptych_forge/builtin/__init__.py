"""The built-in models from data to bundle: ``triptych forge build``."""
