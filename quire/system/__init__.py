"""Services of the operating system: processes, sockets, threads, files, logs, the heap.

Child processes and sandboxes, connections between processes, the machine's cores and memory,
environment variables. It knows no model and no request.
"""
