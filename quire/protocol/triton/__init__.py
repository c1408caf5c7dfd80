"""Triton's generate and inference protocols on the wire."""
