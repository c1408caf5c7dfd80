"""Decoders, their registry and the checkpoint loaders."""
