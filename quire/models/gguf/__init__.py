"""GGUF files as models: their metadata as a configuration, and checkpoints written as GGUF."""
