"""Blocks of GGUF's types, made of floats: searches for scales and codes, and their bits."""
