"""Quantized matrices as programs store them, one file a program."""
