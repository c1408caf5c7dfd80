"""Quantized checkpoints made from checkpoints of floats, layer by layer."""
