"""Models on this machine by name: the hub, downloads, manifests, presets, uploaded files.

From the name of a model to a path, fetched where that is asked. What is in the files is read by the
checkpoints.
"""
