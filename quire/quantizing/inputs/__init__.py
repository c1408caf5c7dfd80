"""Calibration: samples of text, and what the layers of a model are given by them."""
