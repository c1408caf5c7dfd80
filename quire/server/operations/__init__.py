"""What probes and operators ask."""
