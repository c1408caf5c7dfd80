"""A model over several ranks, as threads of one process: the bits of one rank alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.core.errors import ConfigError
from quire.kernels.registry import create_backend
from quire.layers.parallel.expert_placement import ExpertDivision
from quire.models.config.config_reader import read_model_config
from quire.models.shards.rank_model import Shard
from quire.models.shards.rank_weights import RankPart
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.quantization_plan import QuantizationPlan
from quire.quantization.rounding_schemes import create_scheme
from quire.store.hub import resolve_model
from tests.distributed.thread_ranks import on_ranks
from tests.models.conftest import MODELS
from tests.models.gguf_settings import SETTINGS
from tests.models.peft_adapters import add
from tests.models.test_adapters import KINDS, TARGETS
from tests.models.test_decoder import MODELS as NAMES
from tests.models.test_expert_adapters import KINDS as EXPERT_KINDS
from tests.models.test_quantized_checkpoint import APART, FIXTURES, FOLDERS
from tests.sizes import sized
from tools.random_gguf import random_gguf

#: Fields of models that have them.
EXPERTS = {"num_local_experts", "num_experts", "n_routed_experts"}


@pytest.fixture(scope="module")
def cpu():
    return create_backend("cpu", threads=1)


def check_bytes(driver, part, options):
    """The memory of a rank is what is said beforehand."""
    decoder, folder = driver.decoder, driver.folder
    plan = options.get("plan", QuantizationPlan())
    config = read_model_config(folder)
    given = folder, config, decoder.config.dtype, plan, decoder.max_model_len
    expected = expected_weight_bytes(*given, part=part)
    assert abs(expected - decoder.weight_bytes) <= 0.03 * decoder.weight_bytes


@pytest.fixture(scope="module")
def of_one_rank():
    """What one rank computes of each folder with each choice of options, for all sizes and ways."""
    return {}


@pytest.fixture
def compare(cpu, create_driver, random_prompts, of_one_rank):
    """Return a function that runs a folder on one rank and on several, and compares all bits."""

    def run(driver, adapters=None):
        vocabulary = min(211, driver.decoder.config.vocab_size)
        first, second = map(np.array, random_prompts([20, 9], vocabulary))
        driver.start(2)
        driver.adapters = adapters
        found = driver.step([first[:7], second])
        # The array is the decoder's, and of ranks but the first no logits of all tokens.
        return found, driver.step([first[7:], second[:1]], wanted="last")

    def check(folder, size, adapter=None, exact=True, whole_experts=False, **options):
        adapters = None if adapter is None else [1, 0]

        def make(**shard):
            driver = create_driver(folder, cpu, **options, **shard)
            return driver if adapter is None else add(driver, adapter)

        def alone():
            if adapter is not None:
                return run(make(), adapters)
            dtype = options.get("dtype", read_model_config(folder).dtype)
            key = folder, repr(options | {"dtype": dtype})
            if key not in of_one_rank:
                of_one_rank[key] = run(make())
            return of_one_rank[key]

        want, counts = alone(), {}

        def body(group):
            driver = make(shard=Shard(group, exact, ExpertDivision(whole_experts)))
            found = run(driver, adapters)
            if adapter is None:
                check_bytes(
                    driver,
                    RankPart(group.rank, size, exact, ExpertDivision(whole_experts)),
                    options,
                )
            counts[group.rank] = dict(group.counts.calls)
            return found

        got, *_ = on_ranks(size, body)
        for ours, theirs in zip(got, want, strict=True):
            if exact:
                np.testing.assert_array_equal(ours, theirs)
            else:
                assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
                assert (ours.argmax(-1) == theirs.argmax(-1)).all()
        assert len({str(sorted(calls.items())) for calls in counts.values()}) == 1
        return counts[0]

    return check


@pytest.fixture(scope="module")
def random_file(tmp_path_factory):
    """Return a function that gives a file of random blocks of a type, made once."""
    folder = tmp_path_factory.mktemp("random")

    @cache
    def get(name):
        random_gguf(folder / f"{name}.gguf", name)
        return folder / f"{name}.gguf"

    return get


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_family_has_the_bits_of_one_rank(name, size, oracle, compare):
    compare(oracle(name)[1], size)


@pytest.mark.parametrize("size", [2, 3])
def test_the_model_that_comes_along_has_the_bits_of_one_rank(size, compare):
    calls = compare(resolve_model("quire-tiny"), size)
    layers, steps = 6, 2
    assert calls == {"all_gather_columns": steps * (4 * layers + 1), "gather_columns": steps}


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_sums_over_ranks_are_those_of_one_rank(name, size, oracle, compare):
    compare(oracle(name)[1], size, exact=False, dtype="float32")


@pytest.mark.parametrize("size", [2, 4])
def test_sums_take_half_the_messages(size, compare):
    calls = compare(resolve_model("quire-tiny"), size, exact=False, dtype="float32")
    layers, steps = 6, 2
    assert calls == {
        "all_reduce": steps * 2 * layers, "all_gather_columns": steps, "gather_columns": steps,
    }  # fmt: skip


@pytest.mark.parametrize("scheme", ["int8", "int4", "int3", "nf4"])
def test_sums_of_rounded_weights_are_those_of_one_rank(scheme, compare):
    """Inputs are divided where groups end, so each rank has weights that one rank alone has.

    Activations stay as they are: rounded ones may get the next code by a difference in a last bit.
    """
    plan = QuantizationPlan(create_scheme(scheme, 64), create_scheme("int8", 32), True)
    calls = compare(resolve_model("quire-tiny"), 2, exact=False, plan=plan)
    assert calls["all_reduce"] == 24


@pytest.mark.parametrize("name", LAYOUTS)
def test_sums_of_a_type_of_gguf_files_are_those_of_one_rank(name, compare, random_file):
    plan = QuantizationPlan(exact_activations=LAYOUTS[name].is_quantized)
    calls = compare(random_file(name), 2, exact=False, plan=plan, dtype="float32")
    # Heads end where blocks of 32 do, but not always where those of 256 do.
    assert calls["all_reduce"] == (4 if LAYOUTS[name].block_size == 256 else 8)


@pytest.mark.parametrize("name", [*FOLDERS, APART])
def test_a_layout_of_a_checkpoint_has_the_bits_of_one_rank(name, compare):
    compare(FIXTURES / name, 2)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_type_of_gguf_files_has_the_bits_of_one_rank(name, compare, random_file):
    compare(random_file(name), 2)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("scheme", ["int8", "int4", "int3", "nf4"])
def test_weights_that_are_rounded_have_the_bits_of_one_rank(scheme, exact, oracle, compare):
    made = create_scheme(scheme, 32)
    plan = QuantizationPlan(made, create_scheme("int8", 32), exact)
    for name in ("llama-biased-tied", "mixtral"):
        compare(oracle(name)[1], 3, plan=plan)


# One of each way in which files lie otherwise than checkpoints: turned, joined, stacked, packed.
@pytest.mark.parametrize(
    "name", sized(["llama", "falcon-40b", "mixtral", "gpt-oss", "deepseek-v2"], [*SETTINGS])
)
def test_a_gguf_file_has_the_bits_of_one_rank(name, saved_gguf, compare):
    compare(saved_gguf(*SETTINGS[name]), 2)


@pytest.mark.parametrize("name", TARGETS)
def test_adapters_have_the_bits_of_one_rank(name, oracle, adapted, compare):
    _, folder = adapted(name, TARGETS[name])
    compare(oracle(name)[1], 3, folder, takes_adapters=True)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_adapters_have_the_bits_of_one_rank(kind, oracle, adapted, compare):
    name, targets, settings = KINDS[kind]
    _, folder = adapted(name, targets, **settings)
    compare(oracle(name)[1], 2, folder, takes_adapters=True)


@pytest.mark.parametrize("name", [name for name, (_, s) in MODELS.items() if EXPERTS & set(s)])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("size", [4, 8])
def test_experts_on_many_ranks_have_the_bits_of_one(name, size, whole, oracle, compare):
    compare(oracle(name)[1], size, whole_experts=whole)


@pytest.mark.parametrize("name", ["qwen2-moe", "gpt-oss"])
def test_sums_of_whole_experts_over_ranks_are_those_of_one_rank(name, oracle, compare):
    compare(oracle(name)[1], 3, exact=False, whole_experts=True, dtype="float32")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", EXPERT_KINDS)
def test_adapters_of_experts_have_the_bits_of_one_rank(kind, whole, oracle, adapted, compare):
    name, targets, settings = EXPERT_KINDS[kind]
    _, folder = adapted(name, targets, **settings)
    compare(oracle(name)[1], 3, folder, whole_experts=whole, takes_adapters=True)


@pytest.mark.parametrize("redundant", [0, 1])
@pytest.mark.parametrize("name", ["qwen3-moe", "gpt-oss", "deepseek-v3"])
def test_experts_that_move_keep_the_bits(
    name, redundant, oracle, cpu, create_driver, random_prompts
):
    """They go where the busiest rank has less to do, and come from the checkpoint."""
    folder, prompts = oracle(name)[1], [np.array(prompt) for prompt in random_prompts([40, 9])]
    want = run_once(create_driver(folder, cpu), prompts)

    def body(group):
        shard = Shard(group, True, ExpertDivision(True, redundant))
        driver = create_driver(folder, cpu, shard=shard)
        before, after = [], []
        for own in driver.decoder.rank_experts:
            own.num_rows[:] = rows = np.arange(len(own.num_rows))[::-1] ** 3 + 1
            before.append(own.imbalance)
            assert own.rebalance() and not own.num_rows.any()
            after.append(own.placement.imbalance(rows.tolist()))
        return run_once(driver, prompts), before, after

    (got, before, after), *_ = on_ranks(3, body)
    np.testing.assert_array_equal(got, want)
    assert all(b < 0.95 * a for a, b in zip(before, after, strict=True))


def test_experts_move_after_some_steps_layer_after_layer(
    oracle, cpu, create_driver, random_prompts
):
    folder, prompts = oracle("gpt-oss")[1], [np.array(prompt) for prompt in random_prompts([9, 4])]
    want = run_once(create_driver(folder, cpu), prompts)

    def body(group):
        driver = create_driver(
            folder, cpu, shard=Shard(group, True, ExpertDivision(True, interval=2))
        )
        found, counted = [], []
        for _ in range(5):
            found.append(run_once(driver, prompts))
            counted.append([int(own.num_rows.sum()) for own in driver.decoder.rank_experts])
        return found, counted

    (found, counted), *_ = on_ranks(2, body)
    for got in found:
        np.testing.assert_array_equal(got, want)
    assert [[rows // 26 for rows in step] for step in counted] == [
        [1, 1, 1], [2, 2, 2], [1, 3, 3], [2, 1, 4], [1, 2, 1],
    ]  # fmt: skip


def run_once(driver, prompts):
    driver.start(len(prompts))
    return driver.step(prompts)


def test_more_ranks_than_rows_are_refused(oracle, cpu, create_driver):
    with pytest.raises(ConfigError, match="at most 48, the elements of a hidden state"):
        on_ranks(49, lambda group: create_driver(oracle("gpt2")[1], cpu, shard=Shard(group)))
