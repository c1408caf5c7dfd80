"""The chat page at ``/``: a few files without a build step, and the routes that serve them."""
