"""The costs of a division of a model: bytes that ranks send for each token, and that each holds.

Plain arithmetic, known before anything is loaded; nothing is measured here. D model dim, V
vocabulary, N query heads, K KV heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.model.kv_cache_spec import DTYPE_BYTES, KVCacheSpec
from quire.core.model.model_config import ModelConfig
from quire.planner.named_shapes import NamedShape
from quire.settings.parallel_layout import ParallelLayout, split

#: From this many tokens for each rank on, each sums up the experts' rows of its share of them: a
#: second message, less in both.
ROWS_TO_SHARE = 4
#: Bytes of an element that ranks send: the processor's kernels add in float32.
WIRE_BYTES = 4
#: Bytes of a weight, by the types that an engine holds weights in, and those of a byte each.
WEIGHT_BYTES = {**DTYPE_BYTES, "fp8": 1, "int8": 1}


def weights_as(dtype: str, bfloat16_bytes: int) -> int:
    """Return the bytes in another type of weights whose size in bfloat16 is known."""
    return bfloat16_bytes * WEIGHT_BYTES[dtype] // WEIGHT_BYTES["bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitShape:
    """The sizes of a model that count when it is divided.

    Attributes:
        num_layers: Number of decoder layers.
        hidden_size: D, model dim.
        attended_dim: Elements that attention gives for a row, N * H.
        num_kv_heads: K, number of KV heads.
        head_dim: H, elements of a head.
        inner_dim: Width of a dense MLP.
        vocab_size: V, number of tokens.
        num_parameters: Weights of the model; a tied matrix counts once.
        tied: Whether the head is the embedding's matrix.
        num_moe_layers: Layers of experts.
        top_k: Experts of a token in those.
        expert_dim: Width of one expert.
        shared_dim: Width of these layers' experts that are always on.
        splits_attention: Whether each rank computes some of the heads alone; not where a norm spans
            all of them.
    """

    num_layers: int
    hidden_size: int
    attended_dim: int
    num_kv_heads: int
    head_dim: int
    inner_dim: int
    vocab_size: int
    num_parameters: int
    tied: bool = False
    num_moe_layers: int = 0
    top_k: int = 0
    shared_dim: int = 0
    expert_dim: int = 0
    splits_attention: bool = True

    @classmethod
    def of_config(cls, config: ModelConfig) -> SplitShape:
        """Return the sizes of a checkpoint's model."""
        return cls(
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            attended_dim=config.attended_dim,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            inner_dim=config.intermediate_size,
            vocab_size=config.vocab_size,
            num_parameters=config.num_parameters,
            tied=config.tie_word_embeddings,
            num_moe_layers=config.num_moe_layers,
            top_k=0 if config.moe is None else config.moe.top_k,
            shared_dim=0 if config.moe is None else config.moe.shared_size,
            expert_dim=0 if config.moe is None else config.moe.intermediate_size,
            splits_attention=config.qk_norm != "rms_of_rows",
        )

    @classmethod
    def of_named(cls, shape: NamedShape) -> SplitShape:
        """Return the sizes of a model that is known by its name."""
        return cls(
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            attended_dim=shape.num_heads * shape.head_dim,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            inner_dim=shape.intermediate_size,
            vocab_size=shape.vocab_size,
            num_parameters=shape.num_parameters,
            tied=shape.tie_word_embeddings,
            num_moe_layers=shape.num_layers if shape.num_experts else 0,
            top_k=2 if shape.num_experts else 0,
        )

    @property
    def table_parameters(self) -> int:
        """Weights of the embedding, and of the head."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_parameters(self) -> float:
        """Weights of a layer, on average."""
        tables = (1 if self.tied else 2) * self.table_parameters
        return (self.num_parameters - tables) / self.num_layers

    @property
    def pair_parameters(self) -> int:
        """Weights of a layer that make keys and values of one KV head."""
        return 2 * self.head_dim * self.hidden_size


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of exchange in a forward.

    Attributes:
        name: Name of the method of :class:`~quire.distributed.group.Group`.
        what: Description of what is sent, for reports.
        calls: Number of calls in a forward, whatever its rows.
        row_bytes: Payload of a row in bytes, over all calls and all ranks that send.
        of_logits: Whether it has a row for each row of logits, not for each token.
    """

    name: str
    what: str
    calls: int
    row_bytes: int
    of_logits: bool = False


def collectives(
    shape: SplitShape,
    layout: ParallelLayout,
    *,
    exact: bool = True,
    wire_bytes: int = WIRE_BYTES,
    num_tokens: int = 1,
    whole_experts: bool = False,
) -> list[Collective]:
    """Return what the ranks of a layout exchange in a forward.

    Exact sums gather a linear's inputs and its outputs, two each for attention and MLP; else each
    of both has one sum over ranks: ``2 * layers * D * bytes`` for a token. Embeddings are gathered
    once, and logits where they are asked for.

    Args:
        shape: The model.
        layout: The model's division.
        exact: Whether no product is summed over ranks.
        wire_bytes: Bytes of an element that is sent.
        num_tokens: Number of tokens of the forward: of many, experts' rows are sent to where they
            are summed up.
        whole_experts: Whether ranks have some experts whole, not a part of each.
    """
    width, found = shape.hidden_size * wire_bytes, []
    layers, moe = shape.num_layers, shape.num_moe_layers
    if layout.tensor > 1:
        shared = moe if shape.shared_dim else 0
        mlps, inner = layers - moe + shared, (layers - moe) * shape.inner_dim
        inner += shared * shape.shared_dim
        attended = layers if shape.splits_attention else 0
        summed, gathered = (0, layers) if exact else (attended, layers - attended)
        gather, reduce = "all_gather_columns", "all_reduce"
        found += [
            Collective(gather, "attention's rows", attended if exact else 0,
                attended * shape.attended_dim * wire_bytes),
            Collective(gather, "attention's outputs", gathered, gathered * width),
            Collective(reduce, "attention's outputs", summed, summed * width),
            Collective(gather, "MLP's inner rows", mlps if exact else 0, inner * wire_bytes),
            Collective(gather if exact else reduce, "MLP's outputs", mlps, mlps * width),
        ]  # fmt: skip
        routed, is_shared = moe * shape.top_k * width, num_tokens >= ROWS_TO_SHARE * layout.tensor
        if not whole_experts:
            inner = moe * shape.top_k * shape.expert_dim * wire_bytes
            found += [
                Collective(gather, "experts' inner rows", moe, inner),
                Collective(gather, "experts' outputs", moe, routed),
            ]
        elif not exact:
            found.append(Collective(reduce, "experts' outputs", moe, moe * width))
        elif is_shared:
            found += [
                Collective("all_to_all", "experts' rows", moe, routed),
                Collective(gather, "experts' outputs", moe, moe * width),
            ]
        else:
            found.append(Collective(gather, "experts' rows", moe, routed))
        found += [
            Collective(gather, "embeddings", 1, width),
            Collective("gather_columns", "logits", 1, shape.vocab_size * wire_bytes, True),
        ]
    if layout.pipeline > 1:
        borders = layout.pipeline - 1
        found.append(
            Collective("send", "residual and normed rows", 2 * borders, 2 * borders * width)
        )
    return [one for one in found if one.calls]


def forward_bytes(found: list[Collective], num_tokens: int, num_logits: int) -> int:
    """Return the payload of a forward of ``num_tokens`` rows, ``num_logits`` with logits."""
    return sum(one.row_bytes * (num_logits if one.of_logits else num_tokens) for one in found)


@dataclass(frozen=True, slots=True)
class Interconnect:
    """The connection between ranks.

    Attributes:
        title: The link's usual name.
        rate: Bytes a second in one direction.
        delay: Seconds of an exchange, however little it carries; an assumption to be replaced by
            what was measured.
    """

    title: str
    rate: float
    delay: float


#: Rates as makers state them: NVLink 4 is 900 GB/s in both directions together.
LINKS: dict[str, Interconnect] = {
    "nvlink": Interconnect("NVLink, 900 GB/s both ways", 450e9, 10e-6),
    "pcie": Interconnect("PCIe 5.0 x16, 64 GB/s", 64e9, 15e-6),
    "shared-memory": Interconnect("shared memory of one machine, 10 GB/s", 10e9, 10e-6),
    "100gbe": Interconnect("100 Gbit/s Ethernet", 12.5e9, 50e-6),
    "10gbe": Interconnect("10 Gbit/s Ethernet", 1.25e9, 100e-6),
}
#: Links that ranks of one tensor group should not be divided by.
SLOW_RATE = 100e9


def seconds(
    found: list[Collective],
    layout: ParallelLayout,
    link: Interconnect,
    num_tokens: int,
    num_logits: int,
) -> float:
    """Return the time that a forward's exchanges take on a link, none of them hidden by work.

    A rank of n receives (n - 1) / n of a payload that is gathered, twice as much of a sum (a ring
    that scatters and gathers), all of what is sent to it.
    """
    n, total = layout.tensor, 0.0
    for one in found:
        share = {"all_reduce": 2 * (n - 1) / n, "send": 1.0}.get(one.name, (n - 1) / n)
        rows = num_logits if one.of_logits else num_tokens
        total += one.calls * link.delay + share * one.row_bytes * rows / link.rate
    return total


def slow_link(layout: ParallelLayout, link: Interconnect) -> str | None:
    """Return a warning where many ranks exchange every layer over a slow link; None without."""
    if layout.tensor <= 2 or link.rate >= SLOW_RATE or link is LINKS["shared-memory"]:
        return None
    return (
        f"{layout.tensor} shards of each layer over {link.title}: every layer waits for it. Take "
        "--tensor-parallel-size 1 or 2 there and --pipeline-parallel-size for the rest, which "
        "sends once a stage; on NVIDIA cards, nvidia-smi topo -m shows which have NVLink."
    )


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory that a rank needs, in bytes.

    Attributes:
        rank: Number of the rank.
        weights: Bytes of its share of layers and tables, what is replicated included.
        kv_token: Bytes of a token's KV.
        buffers: Bytes of buffers for what it exchanges.
    """

    rank: int
    weights: int
    kv_token: int
    buffers: int

    def total(self, kv_tokens: int) -> int:
        """Return all of it, with KV of ``kv_tokens`` tokens."""
        return self.weights + self.buffers + self.kv_token * kv_tokens


def kv_heads_of(shape: SplitShape, width: int) -> list[int]:
    """Return the KV heads of each shard; where there are fewer heads than shards, one each."""
    if not shape.splits_attention:
        return [shape.num_kv_heads] * width
    if width >= shape.num_kv_heads:
        return [1] * width
    return [len(part) for part in split(shape.num_kv_heads, width)]


def rank_memory(
    shape: SplitShape,
    spec: KVCacheSpec,
    layout: ParallelLayout,
    weight_bytes: int,
    max_rows: int,
    *,
    wire_bytes: int = WIRE_BYTES,
) -> list[RankMemory]:
    """Return the memory that each rank needs.

    Weights are taken to have the same bytes each. Projections of KV heads are in several shards
    where heads are; the first stage has the embedding, the last one the head, both divided by
    tokens; a tied matrix is in both.

    Args:
        shape: The model.
        spec: The model's KV cache in one process.
        layout: The model's division.
        weight_bytes: Bytes of the whole model's weights.
        max_rows: Number of tokens of the largest step, which buffers are for.
        wire_bytes: Bytes of an element that is sent.
    """
    each = weight_bytes / shape.num_parameters
    heads, width = kv_heads_of(shape, layout.tensor), layout.tensor
    pairs = 0 if spec.is_latent else shape.num_kv_heads * shape.pair_parameters
    buffers = buffer_bytes(shape, layout, max_rows, wire_bytes=wire_bytes)
    found = []
    for stage, layers in enumerate(layout.stage_layers(shape.num_layers)):
        for shard, rank in enumerate(layout.stage_ranks(stage)):
            own = heads[shard] * shape.pair_parameters if pairs else 0
            count = len(layers) * ((shape.layer_parameters - pairs) / width + own)
            first, last = stage == 0, stage == layout.pipeline - 1
            tables = 1 if shape.tied and first and last else first + last
            count += tables * shape.table_parameters / width
            kv = spec.token_bytes * len(layers) / shape.num_layers
            if not spec.is_latent:
                kv *= heads[shard] / shape.num_kv_heads
            found.append(RankMemory(rank, round(count * each), round(kv), buffers))
    return found


def buffer_bytes(
    shape: SplitShape, layout: ParallelLayout, max_rows: int, *, wire_bytes: int = WIRE_BYTES
) -> int:
    """Return what a rank needs to hold what others send: the widest exchange of the largest step,
    twice, as one is read while the next is written."""
    if layout.size == 1:
        return 0
    widest = 2 * shape.hidden_size
    if layout.tensor > 1:
        inner = shape.inner_dim if shape.num_moe_layers < shape.num_layers else 0
        widest = max(widest, shape.attended_dim, inner, shape.top_k * shape.hidden_size)
    return 2 * max_rows * widest * wire_bytes
