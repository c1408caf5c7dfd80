"""The engine in a process of its own: messages, loop, supervision."""
