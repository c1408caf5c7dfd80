"""Flags that several commands share, generated from the settings."""
