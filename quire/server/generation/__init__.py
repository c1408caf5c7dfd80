"""From a checked request to the engine's outputs, whatever their shape on the wire."""
