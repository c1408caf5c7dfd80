"""Engines of one model that have some of its experts each: how they multiply rows for each other."""
