"""Training of a model's own matrices: with rounded weights, or by adapters on a frozen base."""
