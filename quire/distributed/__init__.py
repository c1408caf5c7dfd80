"""Ranks that compute one model together: collectives, and the memory that they share.

Ranks on one machine share memory in native code; between machines messages go by torch.distributed.
Threads of one process are the definition of every collective.
"""
