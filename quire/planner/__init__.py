"""The cost of a plan, as arithmetic: memory, exchanges, seconds, weight formats, devices.

Pure functions of a model's shape, a machine's speed and settings. The runner divides memory by
them, ``quire calc`` and ``--dry-run`` print them; nothing here loads or measures a model.
:class:`StepTimes` predicts the seconds of steps from those that it is told of.
"""
