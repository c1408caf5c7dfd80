"""Quantized checkpoints made from checkpoints of floats, layer by layer.

Calibration samples go through the model, the producers of ``quantization`` round each matrix, and a
layout writes what other programs read. A run that was stopped is resumed.
"""
