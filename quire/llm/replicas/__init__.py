"""Several engines of one model as one: the dispatch of requests, and the loss of engines."""
