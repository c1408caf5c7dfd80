"""Grammars of structured output: checked in a sandbox, compiled beside the engine."""
