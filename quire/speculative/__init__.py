"""Speculation: what proposes tokens, and when it pays; checking them is the runner's."""
