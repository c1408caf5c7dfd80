"""Text in, token ids out and back: tokenizers, templates, stop strings."""
