"""OpenAI's API, one file per endpoint."""
