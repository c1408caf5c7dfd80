"""Heads that draft token after token: their drafts against the plain definition in torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from quire.core.errors import ModelLoadError  # noqa: E402
from quire.core.kv_cache_spec import KVCacheSpec  # noqa: E402
from quire.kernels.backend import SamplingBatch  # noqa: E402
from quire.kernels.registry import create_backend  # noqa: E402
from quire.kernels.token_table import IntArray, TokenTable  # noqa: E402
from quire.models.config_reader import read_model_config  # noqa: E402
from quire.models.decoder import Decoder  # noqa: E402
from quire.models.draft_heads.eagle import load_eagle, read_eagle  # noqa: E402
from quire.models.draft_heads.eagle3 import load_eagle3, read_eagle3  # noqa: E402
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors  # noqa: E402
from quire.models.draft_heads.mtp import load_mtp, read_mtp  # noqa: E402
from quire.models.loader import load_model  # noqa: E402
from quire.speculative.recurrent import RecurrentProposer  # noqa: E402
from quire.speculative.target_states import ComputedStates  # noqa: E402
from quire.training.draft_layer import Drafts, LayerShape, RMSNorm  # noqa: E402
from quire.training.head_files import load_head  # noqa: E402
from quire.training.mtp import MTPHead  # noqa: E402
from quire.training.oracle import draft_greedily  # noqa: E402
from quire.training.target import Vocabulary  # noqa: E402
from tests.kernels.sampling_cases import batch as sampling_batch  # noqa: E402
from tests.recurrent_heads import read_vocabulary, write_random_head  # noqa: E402
from tools.random_checkpoint import PRESETS, random_checkpoint  # noqa: E402

CONFIG = PRESETS["tiny-llama"]
D, V = CONFIG["hidden_size"], CONFIG["vocab_size"]
BLOCK = 8
KINDS = ["eagle", "eagle3", "eagle3-draft-vocabulary", "mtp", "mtp-qwen"]
READERS: dict[str, tuple[Any, Any]] = {
    "eagle": (read_eagle, load_eagle),
    "eagle3": (read_eagle3, load_eagle3),
    "mtp": (read_mtp, load_mtp),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("target")
    random_checkpoint(path, CONFIG)
    return path


@pytest.fixture(scope="module")
def target(folder: Path, device: str) -> Decoder:
    return load_model(folder, create_backend(device, threads=1))


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> Vocabulary:
    return read_vocabulary(folder)


SHAPE = LayerShape(D, 48, 4, 2, 16)
QWEN_NAMES = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "shared_head.norm": "mtp.norm",
}


class NormedHeads(nn.Linear):
    """Queries or keys, each of whose heads has the norm of Qwen3."""

    def __init__(self, rows: int) -> None:
        super().__init__(D, rows, bias=False)
        self.norm = RMSNorm(LayerShape(16, 0, 1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        heads = super().forward(x).view(*x.shape[:-1], -1, 16)
        normed: Tensor = self.norm(heads)
        return normed.flatten(-2)


class QwenModule(MTPHead):
    """What goes from one draft to the next is past the last norm."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(SHAPE, vocabulary, CONFIG["num_hidden_layers"])
        self.self_attn.q_proj, self.self_attn.k_proj = NormedHeads(64), NormedHeads(32)

    def mix(self, features: Any, embeds: Any, drafts: Drafts) -> Tensor:
        normed: Tensor = self.shared_head.norm(super().mix(features, embeds, drafts))
        return normed

    def logits(self, outputs: Tensor) -> Tensor:
        return outputs @ self.vocabulary.head.T

    def qwen_tensors(self) -> dict[str, Tensor]:
        """Return the weights as Qwen names them."""
        tensors = {}
        for name, parameter in self.named_parameters():
            module = name.removesuffix(".weight").replace("_proj.norm", "_norm")
            tensors[f"{QWEN_NAMES.get(module, f'mtp.layers.0.{module}')}.weight"] = parameter.data
        return tensors


def qwen_module(vocabulary: Vocabulary) -> QwenModule:
    """Return the same random weights each time."""
    torch.manual_seed(9)
    head = QwenModule(vocabulary)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return head


def write(kind: str, vocabulary: Vocabulary, path: Path) -> Path:
    """Write a head of random weights."""
    if kind == "mtp-qwen":
        path.mkdir(exist_ok=True)
        save_file(qwen_module(vocabulary).qwen_tensors(), path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(asdict(SHAPE)), "utf-8")
        return path
    return write_random_head(kind, vocabulary, path, CONFIG["num_hidden_layers"])


class Drafting:
    """A proposer with the oracle next to it.

    ``states`` (T, S) are random: of the final norm, then those of the layers.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        target: Decoder,
        vocabulary: Vocabulary,
        *,
        has_rules: bool = False,
    ) -> None:
        self.draw = Greedy(has_rules)
        tensors = HeadTensors(folder)
        read, load = READERS[kind.partition("-")[0]]
        shape = read(tensors, target.config)
        self.head = load(shape, HeadBuilder(tensors, target.backend, "float32"), target, 512)
        is_qwen = kind == "mtp-qwen"
        self.oracle = qwen_module(vocabulary) if is_qwen else load_head(folder, vocabulary)
        self.backend = target.backend
        config = self.head.config
        spec = KVCacheSpec(
            num_layers=1,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=BLOCK,
            dtype="float32",
        )
        self.table = TokenTable(4, 64)
        cache = self.backend.kv_cache(spec, 128)
        self.proposer = RecurrentProposer(self.table, self.head, cache, 512)

    def begin(self, name: str, tokens: np.ndarray, first_block: int, num_tokens: int) -> int:
        row = self.table.add(name, tokens[:num_tokens].tolist(), num_tokens)
        self.table.append_blocks(row, list(range(first_block, first_block + 20)))
        self.table.reserve(np.array([row], np.int32), np.array([64], np.int32))
        self.proposer.begin(row, ())
        return row

    def observe(self, parts: dict[int, tuple[np.ndarray, int, int]]) -> None:
        """Tell states ``start`` to ``stop`` of some rows in one step."""
        own = slice(D, None) if self.head.layers else slice(0, D)
        states = np.concatenate([s[start:stop, own] for s, start, stop in parts.values()])
        starts, stops = (np.array([p[i] for p in parts.values()], np.int32) for i in (1, 2))
        rows = np.array(list(parts), np.int32)
        told = self.backend.from_numpy(np.ascontiguousarray(states))
        self.proposer.observe(ComputedStates(rows, starts, stops - starts, told))

    def propose(self, rows: list[int], most: list[int]) -> list[list[int]]:
        asked, limits = np.array(rows, np.int32), np.array(most, np.int32)
        counts = self.proposer.propose(asked, limits, self.draw)
        known = self.table.num_tokens[rows]
        return [
            self.table.token_ids[row, start : start + count].tolist()
            for row, start, count in zip(rows, known, counts, strict=True)
        ]

    def expected(self, tokens: np.ndarray, states: np.ndarray, count: int) -> list[int]:
        ids, rows = torch.tensor(tokens).long(), torch.tensor(states[: len(tokens) - 1])
        return draft_greedily(self.oracle, ids, rows, count)


class Greedy:
    """Takes the likeliest token; as a draw with or without rules."""

    def __init__(self, has_rules: bool) -> None:
        self.has_rules = has_rules

    def __call__(self, logits: Any, rows: IntArray, lengths: IntArray) -> IntArray:
        tokens: IntArray = np.asarray(logits).argmax(-1).astype(np.int32)
        return tokens

    def plain(self, rows: IntArray, lengths: IntArray) -> SamplingBatch | None:
        return None if self.has_rules else sampling_batch(len(rows), temperature=0.0)


def sequence(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((count, 4 * D)).astype(np.float32)
    return rng.integers(0, V, count).astype(np.int32), states


@pytest.mark.parametrize("has_rules", [False, True], ids=["plain", "rules"])
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_oracle(
    kind: str, has_rules: bool, target: Decoder, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    folder = write(kind, vocabulary, tmp_path)
    own = Drafting(kind, folder, target, vocabulary, has_rules=has_rules)
    tokens, states = sequence(1, 90)
    others, other_states = sequence(2, 90)
    row, other = own.begin("a", tokens, 1, 31), own.begin("b", others, 30, 12)
    own.observe({row: (states, 0, 7)})  # a prompt in parts
    assert own.propose([row], [3]) == [[]]
    own.observe({other: (other_states, 0, 11), row: (states, 7, 30)})
    drafted = own.propose([other, row], [2, 4])
    assert drafted == [
        own.expected(others[:12], other_states, 2),
        own.expected(tokens[:31], states, 4),
    ]
    # Two of the proposals hold, none of the other's; refused ones are computed over.
    for at, known, start, stop in ((row, 34, 30, 33), (other, 13, 11, 12)):
        source, rows_of = (tokens, states) if at == row else (others, other_states)
        own.table.token_ids[at, :known] = source[:known]
        own.table.num_tokens[at] = known
        own.observe({at: (rows_of, start, stop)})
    assert own.propose([row], [3]) == [own.expected(tokens[:34], states, 3)]
    assert own.propose([row], [3]) == [[]]  # nothing new was computed
    # Steps without proposals in between.
    for known in range(14, 20):
        own.table.token_ids[other, :known] = others[:known]
        own.table.num_tokens[other] = known
        own.observe({other: (other_states, known - 2, known - 1)})
    assert own.propose([other], [4]) == [own.expected(others[:19], other_states, 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_never_computed_is_left_out(
    kind: str, target: Decoder, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """A head sees positions of its own tokens only, as if the sequence began there."""
    own = Drafting(kind, write(kind, vocabulary, tmp_path), target, vocabulary)
    tokens, states = sequence(3, 60)
    first = own.begin("a", tokens, 1, 25)
    own.observe({first: (states, 0, 24)})
    own.propose([first], [1])
    # Blocks 1 and 2 hold other tokens now, as far as the cache goes.
    changed = tokens.copy()
    changed[3] += 1
    row = own.begin("b", changed, 1, 33)
    own.observe({row: (states, 16, 32)})
    assert own.propose([row], [3]) == [own.expected(changed[16:33], states[16:], 3)]
    # The same tokens: what was computed of them is seen, and no more.
    again = own.begin("c", changed, 1, 40)
    own.observe({again: (states, 32, 39)})
    (drafted,) = own.propose([again], [2])
    assert len(drafted) == 2
    assert own.proposer._rows[again].start == 16


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_in_blocks_that_were_given_back_are_left_out(
    kind: str, target: Decoder, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """A prompt longer than the target's window is drafted from as if it began in the window."""
    own = Drafting(kind, write(kind, vocabulary, tmp_path), target, vocabulary)
    tokens, states = sequence(6, 60)
    short, long = own.begin("a", tokens, 1, 41), own.begin("b", tokens, 30, 41)
    own.observe({short: (states, 23, 40), long: (states, 0, 40)})
    own.table.block_ids[long, :3] = 0
    own.table.block_ids[short, :3] = 0
    want, drafted = own.propose([short, long], [4, 4])
    assert drafted == want and len(want) == 4
    assert own.proposer._rows[long].start == 24
    # Without them the drafts are others: the head does look at what it has.
    again = own.begin("c", tokens, 50, 41)
    own.observe({again: (states, 0, 40)})
    assert own.propose([again], [4]) == [own.expected(tokens[:41], states, 4)] != [want]


def test_a_fork_goes_on_from_its_parent(
    target: Decoder, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    own = Drafting("eagle3", write("eagle3", vocabulary, tmp_path), target, vocabulary)
    tokens, states = sequence(4, 40)
    row, child = own.begin("a", tokens, 1, 21), own.begin("b", tokens, 40, 21)
    own.observe({row: (states, 0, 20)})
    own.proposer.fork(row, child)
    want = own.expected(tokens[:21], states, 3)
    assert own.propose([row, child], [3, 3]) == [want, want]


def test_states_without_room_are_let_go(
    target: Decoder, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.speculative.recurrent.MAX_KEPT", 64)
    own = Drafting("eagle3", write("eagle3", vocabulary, tmp_path), target, vocabulary)
    tokens, states = sequence(5, 140)
    row = own.begin("a", tokens, 1, 131)
    for start in range(0, 130, 13):
        own.observe({row: (states, start, start + 13)})
    (drafted,) = own.propose([row], [3])
    assert len(drafted) == 3
    # States 66 to 129 are kept: the first whole block of pairs that have one begins at 72.
    assert own.proposer._rows[row].start == 72
    # More states in one step than there is room for, of two rows.
    other, own_other = own.begin("b", tokens, 40, 101), own.begin("c", tokens, 80, 21)
    own.observe({other: (states, 0, 100), own_other: (states, 0, 20)})
    drafted, short = own.propose([other, own_other], [3, 3])
    assert len(drafted) == 3 and own.proposer._rows[other].start == 64
    assert short == own.expected(tokens[:21], states, 3)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_other_folders_are_refused(
    kind: str, folder: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    config = read_model_config(folder)
    other = {"eagle": "eagle3", "eagle3": "eagle", "mtp": "eagle"}[kind]
    tensors = HeadTensors(write(other, vocabulary, tmp_path / "other"))
    with pytest.raises(ModelLoadError, match=r"must be those of its configuration|must have "):
        READERS[kind][0](tensors, config)
    tensors = HeadTensors(write(kind, vocabulary, tmp_path / "head"))
    tensors.config.values["hidden_size"] = 2 * D  # type: ignore[index]
    with pytest.raises(ModelLoadError, match=rf"must have the hidden size .* {D}; got {2 * D}"):
        READERS[kind][0](tensors, config)
