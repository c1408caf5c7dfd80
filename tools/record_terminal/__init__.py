"""Captures of quire's commands in a terminal, for docs/terminal.md; made anew by a script."""
