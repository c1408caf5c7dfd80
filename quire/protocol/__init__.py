"""Wire schemas of the HTTP APIs, shared by server, gateway and bench; no behaviour."""
