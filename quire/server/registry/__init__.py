"""Several models in one server: which are in memory, and who waits for which."""
