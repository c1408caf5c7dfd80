"""The path from a checked request to the engine's outputs, whatever their shape on the wire."""
