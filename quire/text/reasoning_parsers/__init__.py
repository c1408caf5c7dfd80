"""Reasoning in answers, by the marks of each format, as the text arrives."""
