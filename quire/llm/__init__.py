"""LLM and AsyncLLM: where engine, runner and text are joined."""
