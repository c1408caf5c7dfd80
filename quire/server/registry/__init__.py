"""Several models in one server: those in memory, and the requests that wait for others."""
