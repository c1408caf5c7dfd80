"""Building blocks of models, written once above the kernels.

Attention, MLPs, experts, norms and heads call the kernels of the backend that they are given.
Adapters and shards wrap them, so that no layer asks for either.
"""
