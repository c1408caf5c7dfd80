"""Families whose layers are mixtures of experts."""
