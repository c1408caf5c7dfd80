"""Models, drafters and adapters that an engine loads, and the plan of its memory."""
