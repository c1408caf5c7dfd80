"""Metrics, logs and traces of requests."""
