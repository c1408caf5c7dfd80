"""Families of encoders: their vectors and classes are read, no text is generated."""
