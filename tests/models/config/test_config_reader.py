"""config.json in the spellings of several years, and what is refused in it."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from quire.core.errors import ModelLoadError, UnsupportedArchitectureError
from quire.core.model.model_config import RopeConfig
from quire.core.model.moe_config import ExpertRouting, MoEConfig
from quire.layers.rope import inverse_frequencies, rope_tables
from quire.models.config.config_reader import read_model_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 100,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
}


@pytest.fixture
def read(tmp_path):
    def read_values(values):
        text = values if isinstance(values, str) else json.dumps(values)
        (tmp_path / "config.json").write_text(text)
        return read_model_config(tmp_path)

    return read_values


def test_llama_defaults(read):
    config = read(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.norm_eps) == (4, 16, 1e-6)
    assert config.rope == RopeConfig(theta=10_000.0, rotary_dim=16)
    assert not (config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm)
    assert (config.dtype, config.tie_word_embeddings) == ("auto", False)
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


def test_llama_3_as_its_makers_wrote_it(read):
    scaling = {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    config = read(
        LLAMA
        | {
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": scaling,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": [2, 3],
            "tie_word_embeddings": True,
            "pretraining_tp": 1,
        }
    )
    assert config.rope == RopeConfig(theta=500000.0, rotary_dim=32, scaling=scaling)
    assert config.max_position_embeddings == 131072
    assert (config.dtype, config.bos_token_id, config.eos_token_ids) == ("bfloat16", 1, (2, 3))


def test_rope_parameters_of_transformers_5(read):
    config = read(LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}})
    assert config.rope == RopeConfig(theta=7.0, rotary_dim=16)


def test_layers_with_a_window_have_a_base_of_their_own(read):
    gemma = LLAMA | {"architectures": ["Gemma3ForCausalLM"], "head_dim": 16, "sliding_window": 64}
    for own, theta in (({}, 10_000.0), ({"rope_local_base_freq": 500.0}, 500.0)):
        config = read(gemma | own)
        assert config.rope == RopeConfig(theta=1e6, rotary_dim=16)
        assert config.window_rope == RopeConfig(theta=theta, rotary_dim=16)


def test_original_context_beside_the_scaling_counts_first(read):
    yarn = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
    config = read(LLAMA | {"rope_scaling": yarn, "original_max_position_embeddings": 256})
    assert config.rope is not None and config.rope.scaling is not None
    assert config.rope.scaling["original_max_position_embeddings"] == 256


def test_scaled_rope_stretches_the_context(read):
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert read(LLAMA | {"rope_scaling": yarn}).max_position_embeddings == 2048
    linear = {"type": "linear", "factor": 2.0}
    assert read(LLAMA | {"rope_scaling": linear}).max_position_embeddings == 1024


def test_mistral_window_is_4096_unless_said_otherwise(read):
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"]}
    assert read(mistral).sliding_window == 4096
    assert read(mistral | {"sliding_window": None}).sliding_window is None
    assert read(mistral | {"sliding_window": 32}).sliding_window == 32


def test_mixtral(read):
    config = read(LLAMA | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4})
    assert config.moe == MoEConfig(
        num_experts=4, intermediate_size=128, routing=ExpertRouting(top_k=2)
    )
    assert config.rope is not None
    assert (config.rope.theta, config.norm_eps, config.sliding_window) == (1e6, 1e-5, None)


def test_layers_without_experts(read):
    moe = LLAMA | {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4}
    assert read(moe).moe.dense_layers == ()
    assert read(moe | {"mlp_only_layers": [1, 3]}).moe.dense_layers == (1, 3)
    config = read(moe | {"mlp_only_layers": [1], "decoder_sparse_step": 2})
    assert config.moe.dense_layers == (0, 1, 2)
    assert [config.layer_moe(n) is None for n in range(4)] == [True, True, True, False]
    assert (config.num_dense_layers, config.num_moe_layers) == (3, 1)
    assert read(moe | {"decoder_sparse_step": 5}).moe is None


def test_experts_of_qwen(read):
    config = read(LLAMA | {"architectures": ["Qwen2MoeForCausalLM"]})
    assert config.moe == MoEConfig(
        num_experts=60,
        intermediate_size=1408,
        routing=ExpertRouting(top_k=4, renormalize=False),
        shared_size=5632,
        shared_gate=True,
    )
    assert config.qkv_bias
    moe = LLAMA | {"architectures": ["Qwen3MoeForCausalLM"]}
    assert read(moe).moe.num_experts == 128
    assert read(moe | {"num_experts": 16}).moe.num_experts == 16
    assert read(moe | {"num_local_experts": 16}).moe.num_experts == 16
    assert read(moe | {"norm_topk_prob": True}).moe.routing == ExpertRouting(top_k=8)
    assert read(moe | {"sliding_window": 16}).sliding_window is None
    assert read(moe | {"sliding_window": 16, "use_sliding_window": True}).sliding_window == 16


def test_experts_of_deepseek(read):
    moe = LLAMA | {
        "architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "n_shared_experts": 2, "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
    }  # fmt: skip
    groups = {"num_groups": 4, "top_groups": 2, "scale": 2.5}
    config = read(moe)
    assert config.moe == MoEConfig(
        num_experts=8,
        intermediate_size=16,
        routing=ExpertRouting(top_k=2, scores="sigmoid", group_best=2, **groups),
        choice_bias=True,
        shared_size=32,
        dense_layers=(0,),
    )
    second = read(moe | {"topk_method": "group_limited_greedy", "norm_topk_prob": False})
    assert second.moe.routing == ExpertRouting(top_k=2, renormalize=False, **groups)
    assert not second.moe.choice_bias
    greedy = read(moe | {"topk_method": "greedy"}).moe.routing
    assert greedy == ExpertRouting(top_k=2, scale=2.5)
    assert read(moe | {"first_k_dense_replace": 9}).moe is None
    for change, message in (
        ({"n_group": 3}, r"n_group must divide the number of experts \(8\)"),
        ({"topk_group": 5}, r"topk_group must be at most n_group \(4\)"),
        ({"num_experts_per_tok": 5}, r"must be at most 4, the experts of topk_group \(2\)"),
        ({"topk_method": "best"}, "topk_method must be noaux_tc"),
        ({"scoring_func": "tanh"}, "scoring_func must be sigmoid or softmax"),
        ({"moe_layer_freq": 2}, "moe_layer_freq must be 1"),
        ({"n_routed_experts": None}, "n_routed_experts is required"),
    ):
        with pytest.raises(ModelLoadError, match=message):
            read(moe | change)


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        ("Qwen3Moe", {"num_experts": 4}, r"must be at most the number of experts \(4\)"),
        ("Qwen3Moe", {"mlp_only_layers": 1}, "mlp_only_layers must be a list of integers"),
        ("Qwen3Moe", {"decoder_sparse_step": 0}, "decoder_sparse_step must be an integer >= 1"),
        ("Qwen2Moe", {"use_sliding_window": True}, "use_sliding_window must be False"),
        ("GraniteMoe", {"num_local_experts": 1}, r"must be at most the number of experts \(1\)"),
    ],
)
def test_experts_that_cannot_be_are_refused(read, architecture, change, message):
    with pytest.raises(ModelLoadError, match=message):
        read(LLAMA | {"architectures": [f"{architecture}ForCausalLM"], **change})


def testread_qwen_windows(read):
    assert read(QWEN2 | {"sliding_window": 16}).sliding_window is None
    windowed = QWEN2 | {"sliding_window": 16, "use_sliding_window": True}
    assert read(windowed | {"sliding_window": None}).sliding_window is None
    config = read(windowed | {"max_window_layers": 3})
    assert config.layer_windows == (False, False, False, True)
    types = ["full_attention", "sliding_attention"] * 2
    config = read(windowed | {"layer_types": types})
    assert config.layer_windows == (False, True, False, True)
    assert config.qkv_bias and not config.output_bias


def test_qwen_layer_types_need_a_window(read):
    types = ["full_attention", "sliding_attention"] * 2
    with pytest.raises(ModelLoadError, match="layer_types must be full_attention without"):
        read(QWEN2 | {"layer_types": types})
    with pytest.raises(ModelLoadError, match="layer_types must be 4 of"):
        read(QWEN2 | {"use_sliding_window": True, "layer_types": types[:2]})


def test_qwen3_has_its_own_head_dim(read):
    config = read(LLAMA | {"architectures": ["Qwen3ForCausalLM"]})
    assert (config.head_dim, config.qk_norm, config.qkv_bias) == (128, "rms_of_heads", False)


@pytest.mark.parametrize(
    ("changes", "caps"),
    [
        ({}, (50.0, 30.0)),
        ({"attn_logit_softcapping": None, "final_logit_softcapping": 20}, (None, 20.0)),
    ],
)
def test_gemma_2_bends_scores_and_logits_unless_told_not_to(read, changes, caps):
    config = read(LLAMA | {"architectures": ["Gemma2ForCausalLM"]} | changes)
    assert (config.attention_cap, config.logits_cap) == caps
    assert (config.attention_scale, config.norm_placement) == (256**-0.5, "both")
    assert (config.sliding_window, config.layer_windows) == (4096, (True, False, True, False))
    with pytest.raises(ModelLoadError, match="attn_logit_softcapping must be a finite number > 0"):
        read(LLAMA | {"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 0})
    with pytest.raises(UnsupportedArchitectureError, match="use_bidirectional_attention"):
        read(LLAMA | {"architectures": ["Gemma2ForCausalLM"], "use_bidirectional_attention": True})


def test_olmo_3_as_its_makers_wrote_it(read):
    """One scaling, which the layers with a window do not have."""
    scaling = {
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "yarn",
    }
    fields = {"rope_scaling": scaling, "rope_theta": 600_000, "max_position_embeddings": 65536}
    config = read(LLAMA | {"architectures": ["Olmo3ForCausalLM"]} | fields)
    assert config.window_rope == RopeConfig(theta=600_000.0, rotary_dim=16)
    assert config.rope.theta == 600_000.0
    assert config.rope.scaling == scaling | {"truncate": True}
    assert config.max_position_embeddings == 65536
    assert (config.sliding_window, config.layer_windows) == (4096, (True, True, True, False))
    assert (config.norm_placement, config.qk_norm) == ("post", "rms_of_rows")
    plain = read(LLAMA | {"architectures": ["Olmo3ForCausalLM"]})
    assert plain.rope == plain.window_rope == RopeConfig(theta=500_000.0, rotary_dim=16)


def test_command_r_plus_has_norms_of_heads(read):
    command_r = LLAMA | {"architectures": ["CohereForCausalLM"]}
    assert read(command_r).qk_norm == ""
    assert read(command_r | {"use_qk_norm": True}).qk_norm == "layer_of_heads"


def test_options_of_published_checkpoints_that_change_nothing(read):
    """Each was refused: of Qwen3-Coder, GPT-NeoX-20B, Devstral 2 and Llama 4 Scout."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    coder = LLAMA | experts | {"architectures": ["Qwen3MoeForCausalLM"], "use_qk_norm": True}
    assert read(coder).qk_norm == "rms_of_heads"
    assert read(LLAMA | {"hidden_act": "gelu_fast"}).activation == "gelu_tanh"
    rope = {"rope_type": "default", "rope_theta": 1e6, "original_max_position_embeddings": 32}
    mistral = LLAMA | {"architectures": ["Ministral3ForCausalLM"]}
    mistral["rope_parameters"] = rope | {"llama_4_scaling_beta": 0.0}
    assert read(mistral).query_scaling is None
    equal = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
    equal |= {"rope_type": "llama3", "original_max_position_embeddings": 8192}
    rope = read(LLAMA | {"rope_scaling": equal}).rope
    frequencies, _ = inverse_frequencies(rope, 16)
    plain, _ = inverse_frequencies(replace(rope, scaling=None), 16)
    # Short wavelengths are kept and long ones slowed down; there is nothing in between.
    assert set(np.unique(np.round(plain / frequencies, 3))) <= {1.0, 8.0}


def test_falcon_as_it_was_first_published(read):
    config = {"model_type": "RefinedWeb", "alibi": False, "bias": False, "n_head": 8}
    config |= {"n_head_kv": 2, "n_layer": 2, "hidden_size": 64, "parallel_attn": True}
    falcon = read(config | {"architectures": ["RWForCausalLM"], "vocab_size": 97})
    assert falcon.architecture == "FalconForCausalLM" and falcon.generates
    assert (falcon.num_kv_heads, falcon.parallel, falcon.shared_norm) == (2, True, False)


def test_gpt2(read):
    config = read(GPT2 | {"eos_token_id": 5})
    assert (config.norm, config.activation, config.gated_mlp) == ("layer_norm", "gelu_tanh", False)
    assert (config.learned_positions, config.max_position_embeddings) == (1024, 1024)
    assert (config.intermediate_size, config.rope, config.tie_word_embeddings) == (192, None, True)


def test_unknown_architecture_names_the_nearest_and_what_differs(read, caplog):
    known_but_for = {"architectures": ["OwnForCausalLM"], "residual_multiplier": 0.5, "beam": 3}
    with pytest.raises(
        UnsupportedArchitectureError,
        match=r"got OwnForCausalLM, to which GraniteForCausalLM is nearest: it differs by beam\.",
    ):
        read(LLAMA | known_but_for)
    with pytest.raises(UnsupportedArchitectureError, match="GPT2LMHeadModel is nearest"):
        read(GPT2 | {"architectures": ["GPT2Model2"]})
    assert not caplog.records


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["MambaForCausalLM"], "state_size": 16},
        # A hybrid, with six options that no family has.
        LLAMA | {"architectures": ["OwnForCausalLM"], **dict.fromkeys("abcdef", 1)},
        # A model of several parts, of which a reader would see one alone.
        LLAMA | {"architectures": ["OwnVLForConditionalGeneration"], "vision_config": {"a": 1}},
    ],
)
def test_a_family_that_is_not_near_is_not_named(read, config):
    """Qwen2-VL was called nearest to most of what is unknown: its reader stopped first."""
    with pytest.raises(UnsupportedArchitectureError, match="got Own|got Mamba") as refused:
        read(config)
    assert ", to which none is near. docs/models.md" in str(refused.value)


def test_a_dense_model_is_near_to_no_mixture_of_experts(read):
    config = LLAMA | {"architectures": ["OwnForCausalLM"], "head_dim": 16, "norm_topk_prob": True}
    with pytest.raises(UnsupportedArchitectureError) as refused:
        read(config)
    assert "MoeForCausalLM" not in str(refused.value)


REFUSED = {
    "hidden_size": "a lot",
    "vocab_size": None,
    "num_hidden_layers": 0,
    "num_attention_heads": -4,
    "num_key_value_heads": 3,
    "intermediate_size": 1.5,
    "max_position_embeddings": 2**40,
    "rms_norm_eps": 0,
    "hidden_act": "relu6",
    "tie_word_embeddings": "yes",
    "attention_bias": 1,
    "rope_theta": 1.0,
    "partial_rotary_factor": 0.2,
    "rope_scaling": "linear",
    "torch_dtype": "float8_e4m3fn",
    "eos_token_id": "</s>",
    "layer_types": ["sliding_attention"] * 4,
    "architectures": [],
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_value_names_its_field(read, name):
    with pytest.raises(ModelLoadError, match=rf"config\.json: {name} "):
        read(LLAMA | {name: REFUSED[name]})


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "spiral"}, "rope_type is not supported; got 'spiral'"),
        ({"type": "mrope", "mrope_section": [1, 2]}, "type is not supported; got 'mrope'"),
        ({"rope_type": "linear"}, "factor is required"),
        ({"rope_type": "linear", "factor": 0.5}, "factor must be >= 1"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor is required"),
        ({"rope_type": "default", "mrope_section": [8]}, "mrope_section is an option"),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 1,
            },
            "original_max_position_embeddings must be > 1",
        ),
    ],
)
def test_bad_rope_scaling_is_refused(read, scaling, message):
    with pytest.raises(ModelLoadError, match=message):
        read(LLAMA | {"rope_scaling": scaling})


@pytest.mark.parametrize(
    "option",
    [
        {"quantization_config": {"quant_method": "aqlm"}},
        {"final_logit_softcapping": 30.0},
        {"residual_multiplier": 0.2},
        {"sliding_window": 64},
        {"is_encoder_decoder": True},
    ],
)
def test_options_that_change_the_output_are_refused(read, option):
    with pytest.raises(UnsupportedArchitectureError, match=next(iter(option))):
        read(LLAMA | option)


def test_gpt2_attention_scaling_is_refused(read):
    with pytest.raises(UnsupportedArchitectureError, match="scale_attn_by_inverse_layer_idx"):
        read(GPT2 | {"scale_attn_by_inverse_layer_idx": True})


def test_unknown_options_are_named_in_the_log(read, caplog):
    with caplog.at_level(logging.WARNING):
        read(LLAMA | {"residual_multiplier": 1.0, "unsloth_fixed": True})
    assert "unsloth_fixed" in caplog.text
    assert "residual_multiplier" not in caplog.text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
ROPE = st.dictionaries(
    st.sampled_from(["rope_type", "type", "factor", "rope_theta", "beta_fast", "low_freq_factor"]),
    VALUES | st.sampled_from(["linear", "dynamic", "yarn", "llama3", 2.0, 8]),
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    start=st.sampled_from([LLAMA, QWEN2, GPT2, LLAMA | {"architectures": ["MixtralForCausalLM"]}]),
    names=st.lists(st.integers(0, 40), max_size=3),
    values=st.lists(VALUES, min_size=3, max_size=3),
    rope=st.none() | ROPE,
)
def test_any_value_gives_a_model_or_a_load_error(read, start, names, values, rope):
    fields = sorted({*LLAMA, *GPT2, *REFUSED, "dtype", "head_dim", "sliding_window", "n_inner"})
    damaged = start | {"rope_scaling": rope}
    damaged |= {fields[i % len(fields)]: v for i, v in zip(names, values, strict=False)}
    try:
        config = read(damaged)
    except ModelLoadError:
        return
    assert config.num_heads % config.num_kv_heads == 0
    if config.rope is not None:
        for table in rope_tables(config.rope, 8):
            assert np.isfinite(table).all()


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "[" * 100_000])
def test_broken_json_names_the_file(read, text):
    with pytest.raises(ModelLoadError, match=r"config\.json must"):
        read(text)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json must be readable"):
        read_model_config(tmp_path)


def test_dtype_of_the_file_where_the_configuration_names_none(read, tmp_path):
    arrays = {"ids": np.zeros(2, dtype=np.int64), "weight": np.zeros(2, dtype=np.float16)}
    save_file(arrays, tmp_path / "model.safetensors")
    assert read(LLAMA).dtype == "float16"
    assert read(LLAMA | {"torch_dtype": "float32"}).dtype == "float32"
