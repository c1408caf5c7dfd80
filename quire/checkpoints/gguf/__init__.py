"""GGUF files: their metadata, their tensors, their types of blocks, and a writer."""
