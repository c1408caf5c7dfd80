"""The HTTP server: routes of every API over one engine client.

``http/`` has connections and bodies, ``access/`` keys and limits, ``generation/`` the way from a
request to the engine, ``openai/`` and ``compat/`` the APIs, ``registry/`` several models. It never
sees an engine's inside.
"""
