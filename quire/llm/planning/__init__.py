"""What an engine of a model will be and take, its texts and drafts checked; nothing is loaded."""
