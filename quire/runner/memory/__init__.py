"""What an engine loads and what memory it takes: models, drafters, adapters, the plan."""
