"""Proposers: draft models, heads, n-grams, and what they keep of rows and states."""
