"""Outputs that callers see, made of the engine's tokens: text, log-probabilities, vectors."""
