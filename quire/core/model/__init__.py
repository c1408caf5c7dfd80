"""What a model looks like, as numbers: its shape, its experts, its pictures, its KV cache.

The readers of checkpoints fill these in; the planner, the layers and the runner compute with them.
"""
