"""Names of the tensors of one family of checkpoints; no tensor is read here."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedExperts:
    """Experts of a layer as one tensor of each kind: (E, 2 M, D) and (E, D, M).

    Attributes:
        gate_up, down: Names of the tensors, without the endings below.
        weight, bias: Endings appended to these names.
        transposed: Whether tensors are stored (E, in, out).
        interleaved: Whether rows of gate and up alternate; otherwise all of gate's come first.
        router: The router's name in this form, where it has another one.
    """

    gate_up: str
    down: str
    weight: str = ""
    bias: str = "_bias"
    transposed: bool = False
    interleaved: bool = False
    router: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Names of a checkpoint's modules, without ``.weight`` and ``.bias``.

    Several names in one entry are matrices stacked along their outputs in that order. Names of a
    layer are appended to ``layer``; ``{layer}`` and ``{expert}`` are replaced by numbers.

    Attributes:
        optional_prefix: First part of the names that some checkpoints leave out.
        attention_norm_after, mlp_norm_after: Norms of the outputs of attention and of the MLP.
        embedding_norm, next_norm: Norms of the embeddings, and of a layer's sum, in place of the
            attention norms of the first layer and of the next one, and of the final norm.
        token_types: Embedding of the texts that a token may belong to.
        pooler, classifier: Heads of a model that pools, and of one that classifies.
        sinks: Whole name of the tensor of attention sinks.
        queries: Query matrix of latent attention, in place of ``qkv``; ``query_down``,
            ``query_norm`` and ``query_up`` where queries are made of fewer elements.
        latents, latent_norm, latent_heads: Modules that make latents, and keys and values of them.
        router, choice_bias: Router of a mixture of experts, and whole name of the tensor of its
            bias that only chooses.
        expert_gate_up, expert_down: Matrices of each expert.
        shared_gate_up, shared_down, shared_gate: Matrices of the experts that are always on, taken
            as one.
        fused_experts: Forms in which a layer's experts may be stored as one tensor, in turn.
        groups_qkv: Whether the one matrix of ``qkv`` has, for each KV head, its queries, key and
            value.
        linear_is_transposed: Whether matrices are stored (in, out), as GPT-2's Conv1D keeps them.
        harmless: Regular expressions of tensors that may be there and are not needed.
    """

    layer: str
    embedding: str
    attention_output: str
    gate_up: tuple[str, ...]
    down: str
    qkv: tuple[str, ...] = ()
    final_norm: str = ""
    embedding_norm: str = ""
    next_norm: str = ""
    attention_norm: str = ""
    attention_norm_after: str = ""
    mlp_norm: str = ""
    mlp_norm_after: str = ""
    head: str = "lm_head"
    optional_prefix: str = "model."
    positions: str = ""
    token_types: str = ""
    pooler: str = ""
    classifier: str = ""
    q_norm: str = ""
    k_norm: str = ""
    sinks: str = ""
    queries: str = ""
    query_down: str = ""
    query_norm: str = ""
    query_up: str = ""
    latents: str = ""
    latent_norm: str = ""
    latent_heads: str = ""
    router: str = ""
    choice_bias: str = ""
    expert_gate_up: tuple[str, ...] = ()
    expert_down: str = ""
    shared_gate_up: tuple[str, ...] = ()
    shared_down: str = ""
    shared_gate: str = ""
    fused_experts: tuple[FusedExperts, ...] = ()
    groups_qkv: bool = False
    linear_is_transposed: bool = False
    harmless: tuple[str, ...] = ()

    def under(self, prefix: str) -> WeightNames:
        """Return the names of a decoder that is a part of a larger model."""
        fields = ("layer", "embedding", "positions", "final_norm", "head")
        return replace(self, **{f: prefix + getattr(self, f) for f in fields if getattr(self, f)})

    def without_prefix(self) -> WeightNames:
        """Return the names as they are when the optional prefix is left out."""
        fields = (
            "layer", "embedding", "positions", "final_norm", "embedding_norm", "token_types",
            "pooler",
        )  # fmt: skip
        return replace(
            self, **{f: getattr(self, f).removeprefix(self.optional_prefix) for f in fields}
        )
