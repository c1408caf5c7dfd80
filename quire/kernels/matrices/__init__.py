"""Matrices in host memory before a backend packs them: types, codes, scales, tables."""
