"""The command line: one file per command; what a command needs is imported when it runs.

Commands only read flags and print; what they do is done by the rooms below.
"""
