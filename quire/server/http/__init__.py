"""Connections, bodies, errors and event streams; it knows no model."""
