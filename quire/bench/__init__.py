"""Load for any server that speaks OpenAI's API, and what its clients saw; knows no engine.

Requests are sent over HTTP at their times, and every figure is computed from the clients' records.
The reports have the shapes of ``vllm bench serve``.
"""
