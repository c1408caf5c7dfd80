"""Wire schemas of the HTTP APIs, shared by server and clients; no behaviour.

One folder or file for each API. Fields that cannot be honoured are refused by name, never dropped.
"""
