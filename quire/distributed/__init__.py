"""Ranks that compute one model together: collectives, and who is which rank."""
