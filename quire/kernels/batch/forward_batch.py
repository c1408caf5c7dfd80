"""One step as arrays: the ragged batch that layers and ops read; nothing about requests.

T tokens of the step, B requests, L rows whose logits are wanted, D model dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: numpy.ndarray on cpu, torch.Tensor on every other device. Layers only call ops, slice, reshape
#: and read shapes, so they run on either.
Array = Any


@dataclass(slots=True)
class ForwardBatch:
    """A step's rows, requests one after another.

    Attributes:
        input_ids: (T,) int32.
        positions: (T,) int32, absolute position of each token; (S, T) for a model whose rotary
            embedding has S sections, which may differ.
        slot_mapping: (T,) int64, where each token's KV goes; -1 writes nowhere.
        block_tables: (B, max_blocks) int32, padded with 0.
        query_start_loc: (B + 1,) int32, prefix sums of query lengths.
        seq_lens: (B,) int32, context plus query.
        logits_indices: (L,) int32, rows whose logits are wanted.
        token_types: (T,) int32, which of its request's texts each token belongs to; None where all
            belong to the first.
        embedding_rows: (E,) int32, rows whose embedding is given instead of looked up, or None.
            Their ``input_ids`` are any of the vocabulary.
        embeddings: (E, D) of the backend's ``activation_dtype``, or None.
        tree_starts: (B,) int32, or None when no request has a tree of tokens: the first position
            that several of a request's last rows have; ``seq_lens`` where none has.
        tree_slots: (T, depth) int64, or None likewise: the slots of the tokens that a row of a tree
            sees from there on, its own the last, then -1; -1 alone for all other rows.
        last_seen: (T,) int32, the last position that each row sees at least, its request's last one
            at most; never falls within a request, and has no effect on those with trees. None where
            rows see no later ones.
        adapters: (B,) int32, the slot of each request's adapter, 0 for none; None when no request
            has one.
        num_drawn: Number of ``logits_indices``, the first ones, that tokens are drawn from: their
            logits are asked for when the step is computed.
    """

    input_ids: Array
    positions: Array
    slot_mapping: Array
    block_tables: Array
    query_start_loc: Array
    seq_lens: Array
    logits_indices: Array
    token_types: Array | None = None
    embedding_rows: Array | None = None
    embeddings: Array | None = None
    tree_starts: Array | None = None
    tree_slots: Array | None = None
    last_seen: Array | None = None
    adapters: Array | None = None
    num_drawn: int = 0


@dataclass(slots=True)
class BatchRows:
    """The rows of a step that an array of activations holds.

    Attributes:
        batch: The step.
        indices: Rows of the batch (int32) in the array's order; None for all T in theirs.
        adapter_groups: The rows by their adapter, once that was asked.
    """

    batch: ForwardBatch
    indices: Array | None = None
    adapter_groups: Any = None
