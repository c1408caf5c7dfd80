"""Gates of the queue: a request waits for its adapter, its pictures and its blocks, too."""
