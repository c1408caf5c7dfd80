"""Settings that a step's tokens are drawn with, as arrays; ``kernels/sampling.py`` defines them."""

from __future__ import annotations

from dataclasses import dataclass

from quire.kernels.batch.forward_batch import Array


@dataclass(slots=True)
class SamplingBatch:
    """Everything that decides the tokens of B rows, as arrays prepared by the caller.

    Attributes:
        temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty:
            (B,) float32. Temperature 0 is greedy.
        top_k: (B,) int32, 0 keeps all.
        seed: (B,) uint64. position: (B,) int64, index of the output token being drawn.
            A token's random number is a function of (seed, position, token id) only.
        history_ids, history_offsets: flat int32 and (B + 1,) int64: prompt then output tokens of
            each row that penalties look at; empty rows where no penalty applies.
        num_prompt_tokens: (B,) int32, how many leading history tokens are prompt.
        bias_ids, bias_values, bias_offsets: flat int32, flat float32, (B + 1,) int64: added to the
            logits; -inf forbids.
        allowed_ids, allowed_offsets: flat int32, (B + 1,) int64; an empty row allows all.
        mask_words: (M, ceil(V / 32)) uint32, one bit per token id, lowest first; 0 forbids.
        mask_rows: (B,) int32, the row of ``mask_words`` that applies, or -1.
    """

    temperature: Array
    top_p: Array
    min_p: Array
    repetition_penalty: Array
    presence_penalty: Array
    frequency_penalty: Array
    top_k: Array
    seed: Array
    position: Array
    history_ids: Array
    history_offsets: Array
    num_prompt_tokens: Array
    bias_ids: Array
    bias_values: Array
    bias_offsets: Array
    allowed_ids: Array
    allowed_offsets: Array
    mask_words: Array
    mask_rows: Array
