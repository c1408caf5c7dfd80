"""One model on several ranks: the driver announces each command, and the others do their part."""
