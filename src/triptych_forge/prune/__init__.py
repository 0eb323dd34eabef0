"""Pruning: sensitivities, structured removal of channels, hardware profiles, sparse layers."""
