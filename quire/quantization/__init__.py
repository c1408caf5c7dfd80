"""Making quantized matrices of floats: at load by rounding, or by the methods of papers.

A plan says which matrices of a model are rounded at load. Producers are arithmetic on one matrix;
files and calibration belong to ``quantizing``.
"""
