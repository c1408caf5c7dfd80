"""Sanitizers over the native module, a coverage-guided fuzz of what reads strangers' bytes."""
