"""The target's states and its roll-outs, on quire-tiny."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from quire import LLM  # noqa: E402
from quire.core.errors import ConfigError  # noqa: E402
from quire.training.rollouts import load_rollouts, roll_out, save_rollouts  # noqa: E402
from quire.training.target import TrainingTarget, default_layers, load_vocabulary  # noqa: E402

FOLDER = Path(__file__).parents[2] / "quire" / "assets" / "quire-tiny"
PROMPT = "<|im_start|>user\nWhat is the capital of {}?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def rollouts():
    llm = LLM(FOLDER, max_model_len=64)
    texts = [PROMPT.format(name) for name in ("France", "Japan", "Italy")]
    prompts = [llm.get_tokenizer().encode(text) for text in texts]
    return roll_out(llm, [*prompts, [5] * 64], 20)


def test_answers_are_greedy_and_sampled_in_turn(rollouts):
    llm = LLM(FOLDER, max_model_len=64)
    assert len(rollouts) == 3  # the fourth prompt leaves no room
    for number, rollout in enumerate(rollouts):
        ids, start = rollout.token_ids.tolist(), rollout.num_prompt_tokens
        (again,) = roll_out(llm, [ids[:start]], 20, temperatures=(0.0,))
        if number % 2 == 0:
            assert again.token_ids.tolist() == ids


def test_rollouts_come_back_from_their_file(rollouts, tmp_path):
    save_rollouts(tmp_path / "rollouts.npz", rollouts)
    again = load_rollouts(tmp_path / "rollouts.npz")
    assert [r.num_prompt_tokens for r in again] == [r.num_prompt_tokens for r in rollouts]
    for one, other in zip(again, rollouts, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)


def test_states_lead_to_the_greedy_answers(rollouts):
    target = TrainingTarget(FOLDER, (1, 3, 5), 64, threads=1)
    head = load_vocabulary(FOLDER).head.numpy()
    width = target.config.hidden_size
    for rollout, states in zip(
        rollouts, target.states([r.token_ids for r in rollouts]), strict=True
    ):
        assert states.shape == (len(rollout.token_ids), target.width) == (len(states), 4 * width)
        (alone,) = target.states([rollout.token_ids])
        np.testing.assert_array_equal(alone, states)
    first = rollouts[0]
    (states,) = target.states([first.token_ids])
    best = (states[:, :width] @ head.T).argmax(-1)
    start = first.num_prompt_tokens
    np.testing.assert_array_equal(best[start - 1 : -1], first.token_ids[start:])


def test_layers_are_those_of_published_heads_or_spread():
    assert default_layers(32) == (2, 16, 29)
    assert default_layers(6) == (1, 3, 5)
    assert default_layers(3) == (0, 1, 2)
    with pytest.raises(ConfigError, match="at least 3 layers; got 2"):
        default_layers(2)
