"""Quantized checkpoints: what their settings say, and one tensor a matrix."""
