"""Triptych: three model tiers and a supervisor for vision-language models on vehicles."""

__version__ = "0.1.0"
