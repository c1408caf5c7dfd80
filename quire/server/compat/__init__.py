"""Other servers' request and answer shapes, on the endpoints of our own."""
