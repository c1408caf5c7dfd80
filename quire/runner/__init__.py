"""Execution: it turns a plan into tokens, and owns the tensors."""
