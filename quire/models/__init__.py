"""Decoders and encoders of pictures, and how they are built from checkpoints.

A family's file says what its configuration means and what its tensors are called; one decoder
computes all families. Adapters, draft heads, shards and stages are parts or forms of a model.
"""
