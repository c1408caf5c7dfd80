"""From the engine's tokens to what callers see: text, log-probabilities, vectors."""
