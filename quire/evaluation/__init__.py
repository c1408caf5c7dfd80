"""The judge of quality: texts through a model or a server, and what its distributions are worth."""
