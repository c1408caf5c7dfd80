"""Many drafts at once, as training makes them, against the oracle; layers against transformers."""

import pytest

torch = pytest.importorskip("torch")

from quire.training.acceptance import draft_all, measure_acceptance  # noqa: E402
from quire.training.draft_layer import Drafts, rotate  # noqa: E402
from tests.training.oracle import draft_greedily, draft_logits  # noqa: E402


def test_drafts_of_a_batch_are_those_of_the_oracle(head, examples):
    num_tokens = 3
    seen = 0
    for batch in examples.batches():
        drafted = draft_all(head, batch, num_tokens)
        for row, count in enumerate(batch.counts.tolist()):
            for column in range(count):
                start = int(batch.starts[row, column])
                known = batch.token_ids[row, : start + 1]
                states = batch.states[row, :start]
                want = draft_greedily(head, known, states, num_tokens)
                assert drafted[row, column].tolist() == want
                seen += 1
    assert seen == examples.num_starts == 4 + 10


@pytest.mark.parametrize("name", ["eagle", "mtp"])
def test_layers_are_those_of_transformers(name, create_head):
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    head = create_head(name)
    shape = head.shape
    config = transformers.LlamaConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_norm_eps,
    )
    config._attn_implementation = "eager"
    layer = LlamaDecoderLayer(config, 0)
    own = head.layers[0] if name == "eagle" else head
    state = {k: v for k, v in own.state_dict().items() if k in layer.state_dict()}
    if name == "eagle":
        layer.input_layernorm = torch.nn.Identity()
    layer.load_state_dict(state)
    generator = torch.Generator().manual_seed(5)
    features, embeds = (torch.randn(1, 7, shape.hidden_size, generator=generator) for _ in "fe")
    positions = torch.arange(7)[None]
    with torch.no_grad():
        if name == "eagle":
            entering = head.fc(torch.cat([embeds, features], -1))
        else:
            entering = head.eh_proj(torch.cat([head.enorm(embeds), head.hnorm(features)], -1))
        mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]
        rotary = LlamaRotaryEmbedding(config)(entering, positions)
        want = layer(entering, attention_mask=mask, position_embeddings=rotary)
        got = head.mix(features, embeds, Drafts(positions))
    torch.testing.assert_close(got, want[0] if isinstance(want, tuple) else want)


def test_rotation_tells_distances_only():
    """So a pair may be numbered by its token or, as published, by its feature."""
    generator = torch.Generator().manual_seed(6)
    q, k = (torch.randn(1, 2, 9, 8, generator=generator) for _ in "qk")
    by_token, by_feature = torch.arange(1, 10)[None], torch.arange(9)[None]
    scores = [rotate(q, at, 1e4) @ rotate(k, at, 1e4).mT for at in (by_token, by_feature)]
    torch.testing.assert_close(*scores)
    assert not torch.allclose(scores[0], q @ k.mT)


def test_draft_vocabulary_leaves_out_the_rest(create_head):
    head = create_head("eagle3-draft-vocabulary")
    generator = torch.Generator().manual_seed(7)
    states = torch.randn(5, 4 * head.shape.hidden_size, generator=generator)
    logits = draft_logits(head, torch.arange(6), states, 4)
    drafted = torch.isfinite(logits).nonzero()[:, 1].reshape(4, -1)
    assert drafted.tolist() == [head.draft_ids.tolist()] * 4


@pytest.mark.parametrize(
    ("wrong", "equal", "kept", "tokens_per_round"),
    [
        ((), (1, 1, 1), (1, 1, 1), 14 / 4),  # 4 tokens in one round, 10 in three
        ((0, 1, 2), (0, 0, 0), (0, 0, 0), 1),
        ((1,), (1, 0, 1), (1, 0, 0), 2),
    ],
)
def test_acceptance_counts_tokens_that_follow(examples, wrong, equal, kept, tokens_per_round):
    def draft(batch):
        tokens = batch.token_ids[:, :, None]
        places = batch.starts[:, :, None] + torch.arange(1, 4)
        following = tokens.gather(1, places.clamp(max=tokens.shape[1] - 1).flatten(1)[:, :, None])
        drafted = following.reshape(*places.shape)
        drafted[..., list(wrong)] += 1
        return drafted

    acceptance = measure_acceptance(draft, examples.batches())
    assert acceptance.equal == equal
    assert acceptance.kept == kept
    assert acceptance.tokens_per_round == tokens_per_round
