"""Grammars of structured output, compiled in three places.

What a grammar costs to compile cannot be told before: some would take hours, gigabytes or more
stack than there is. A server therefore compiles every new one in a process of its own first
(``sandbox``), with limits on time, memory and stack, follows it there for some tokens (``trial``),
and keeps the verdict (``checker``), each client in its turn (``turns``): one request is refused,
and no other waits or dies. What was compiled cannot leave that process, but it is needed where
tokens are drawn; so the engine's process compiles it once more, knowing that this ends, in a thread
of its own (``compile_thread``): the tokens of other requests do not wait. That compiler is made
when the engine serves (``lazy_compiler``), so that no first answer waits for it. ``LLM`` and
``AsyncLLM``, whose callers are trusted, have no sandbox and compile once, in the thread that reads
the request.
"""
