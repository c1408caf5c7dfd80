"""Weight formats of other programs: their layouts, and their values as plain integers and scales."""
