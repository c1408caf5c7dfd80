"""Beam search over an engine: which sequences go on, step by step."""
