"""Ollama's API on the wire."""
