"""Readers of ``config.json``: the registry of families, and what they share."""
