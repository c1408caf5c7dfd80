"""One model on several ranks: the driver announces what it does, and the others do their part."""
