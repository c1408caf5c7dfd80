"""Speculation: what proposes tokens, and when it pays; checking them is the runner's.

``drafters/`` propose, ``pace/`` decides how many tokens are proposed for which request. The runner
asks through :class:`Proposer`.
"""
