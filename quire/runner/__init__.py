"""Execution: a plan of the engine computed on the model, in this process or on ranks.

``step/`` computes one plan, ``memory/`` loads models and divides memory, ``blocks/`` keeps KV
blocks outside of the cache, ``ranks/`` runs one model on several processes.
"""
