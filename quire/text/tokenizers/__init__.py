"""Tokenizers: text to ids and back, from the files of Hugging Face, sentencepiece and GGUF."""
