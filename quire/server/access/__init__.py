"""Who may ask, how much and how often."""
