"""Commands that measure: load on a server, the quality of models, the machine."""
