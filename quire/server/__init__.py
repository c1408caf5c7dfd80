"""HTTP server; sees AsyncLLM only."""
