"""Advice on weight formats: cards by name, measured formats, and which one fits and is fast."""
