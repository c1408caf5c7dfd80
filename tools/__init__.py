"""Reproducible one-offs that made something in the package; ``quire`` imports none of it."""
