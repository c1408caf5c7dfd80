"""Ops: one file per op for signature and checks, one folder per implementation."""
