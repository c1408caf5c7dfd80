"""The judge of quality: texts through a model or a server, and what its distributions are worth.

Perplexity, divergence from a reference and multiple choice, each figure with its interval; weight
formats side by side.
"""
