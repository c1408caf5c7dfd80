"""Linears and experts that several ranks share."""
