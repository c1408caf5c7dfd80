"""Command line: one file per command, imports inside the commands."""
