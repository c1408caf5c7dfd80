"""Models as numbers: their shape, experts, pictures and KV cache.

The readers of checkpoints fill these in; the planner, the layers and the runner compute with them.
"""
