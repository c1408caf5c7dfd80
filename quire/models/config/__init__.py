"""From ``config.json`` to a :class:`ModelConfig`: the registry of families and shared readers."""
