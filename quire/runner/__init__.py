"""Execution: a plan in, tokens out; owns the tensors."""
