"""Heads that draft from a target's hidden states: their checkpoints, and what they compute."""
