"""Requests as callers give them, read against a model: prompts, settings, adapters, limits."""
