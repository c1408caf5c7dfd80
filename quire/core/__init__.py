"""Plain data that every room shares; no tensors.

Requests and their settings, the messages between scheduling and execution, outputs, metrics and
errors. A type lives here when rooms that do not import each other need it. Nothing here reads a
file, an environment variable or the machine.
"""
