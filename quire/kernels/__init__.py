"""Ops: one file per op for its signature and checks, one folder per implementation.

``reference/`` is the definition in torch, ``cpu/`` runs the native kernels. Layers are given a
:class:`Backend` and never ask which device it is for.
"""
