"""``LLM`` and ``AsyncLLM``: where engine, runner and text are joined.

A server sees an :class:`EngineClient`, whether the engine runs in this process, in one of its own,
or several engines serve one model. Requests are read against the model here, and outputs become
text.
"""
