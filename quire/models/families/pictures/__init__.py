"""Families that read pictures: an encoder in front of a decoder."""
