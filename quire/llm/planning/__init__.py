"""The plan of an engine from a checkpoint, its texts and drafts checked; nothing is loaded."""
