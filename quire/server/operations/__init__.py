"""Routes for probes and operators."""
