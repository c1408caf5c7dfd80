"""Small faults of product code, each of which the small circle of tests must find.

The tables say where each one is; ``scripts/mutants`` puts one at a time into a copy of the tree.
"""
