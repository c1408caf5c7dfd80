"""Matrices as checkpoints of other programs store them, one file a program."""
