"""Stored formats that results are written in: what each takes, and how ``config.json`` says it."""
