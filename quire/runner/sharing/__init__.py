"""Engines that have some of a model's experts each, and multiply rows for each other."""
