"""Tiny random models written by transformers, and a driver that runs ours by hand."""

from pathlib import Path

import numpy as np
import pytest

from quire.core.errors import NoKernelError
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.registry import create_backend
from quire.models.loader import load_opened, open_checkpoint
from tests.lazy_packages import lazy_package
from tests.models.peft_adapters import AdaptedModels
from tests.models.saved_gguf import SavedFiles

torch = pytest.importorskip("torch")
transformers = lazy_package("transformers")

SHARED = {
    "vocab_size": 211,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"vocab_size": 211, "n_embd": 48, "n_layer": 3, "n_head": 3, "n_positions": 128}


def longrope(original):
    """Return the settings of a context stretched from ``original`` tokens."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0 + 0.1 * i for i in range(6)],
        "long_factor": [2.0 + i for i in range(6)],
        "original_max_position_embeddings": original,
    }
    return {"rope_parameters": rope, "original_max_position_embeddings": original}


LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.22,
    "logits_scaling": 4.0,
}
GEMMA3 = {
    "head_dim": 20,
    "sliding_window": 9,
    "layer_types": LAYER_TYPES,
    "query_pre_attn_scalar": 30,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    },
}
MANY_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 32,
}
DEEPSEEK_EXPERTS = {
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
}
LLAMA4 = {
    **SHARED,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 80,
    "interleave_moe_layer_step": 2,
    "head_dim": 20,
    "attention_chunk_size": 9,
    "floor_scale": 8,
    "no_rope_layer_interval": 3,
}
DEEPSEEK = {
    **DEEPSEEK_EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 28,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12,
    "v_head_dim": 18,
}
DEEPSEEK_V2 = {**DEEPSEEK, "topk_method": "group_limited_greedy", "norm_topk_prob": False}
DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
    "original_max_position_embeddings": 64,
}
GEMMA2 = {
    "head_dim": 20,
    "sliding_window": 9,
    "query_pre_attn_scalar": 30,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 6.0,
}
OLMO3 = {
    "sliding_window": 9,
    "layer_types": LAYER_TYPES,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        "full_attention": {
            "rope_type": "yarn",
            "rope_theta": 5000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}
FALCON = {**SHARED, "ffn_hidden_size": 96}

MODELS = {
    "llama": ("Llama", {**SHARED, "rope_parameters": LLAMA3}),
    "llama-biased-tied": (
        "Llama",
        {**SHARED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": ("Mistral", {**SHARED, "sliding_window": 11, "head_dim": 24}),
    "mixtral": ("Mixtral", {**SHARED, **EXPERTS, "sliding_window": None}),
    "llama4": ("Llama4", LLAMA4),
    "llama4-plain": (
        "Llama4",
        {
            **LLAMA4,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "attention_chunk_size": None,
            "interleave_moe_layer_step": 1,
        },
    ),
    "ministral3": (
        "Ministral3",
        {
            **SHARED,
            "head_dim": 24,
            "rope_parameters": {
                **YARN,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    "dots1": (
        "Dots1",
        {**SHARED, **DEEPSEEK_EXPERTS, "sliding_window": 9, "max_window_layers": 2},
    ),
    "glm4-moe": (
        "Glm4Moe",
        {**SHARED, **DEEPSEEK_EXPERTS, "use_qk_norm": True, "attention_bias": True},
    ),
    "deepseek-v2": ("DeepseekV2", {**SHARED, **DEEPSEEK_V2}),
    "deepseek-v2-lite": (
        "DeepseekV2",
        {
            **SHARED,
            **DEEPSEEK_V2,
            "q_lora_rank": None,
            "topk_method": "greedy",
            "rope_parameters": DEEPSEEK_YARN,
        },
    ),
    "deepseek-v3": ("DeepseekV3", {**SHARED, **DEEPSEEK, "rope_parameters": DEEPSEEK_YARN}),
    "olmoe": (
        "Olmoe",
        {**SHARED, "num_experts": 6, "num_experts_per_tok": 3, "num_key_value_heads": 4},
    ),
    "gpt-oss": (
        "GptOss",
        {
            **SHARED,
            **EXPERTS,
            "head_dim": 16,
            "sliding_window": 9,
            "layer_types": LAYER_TYPES,
            "rope_parameters": YARN,
        },
    ),
    "granite-moe": ("GraniteMoe", {**SHARED, **GRANITE, **EXPERTS}),
    "granite-moe-shared": (
        "GraniteMoeShared",
        {**SHARED, **GRANITE, **EXPERTS, "shared_intermediate_size": 56},
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            **SHARED,
            **MANY_EXPERTS,
            "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            **SHARED,
            **MANY_EXPERTS,
            "head_dim": 20,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen2": ("Qwen2", {**SHARED, **QWEN_WINDOW}),
    "qwen3": ("Qwen3", {**SHARED, "head_dim": 20, "tie_word_embeddings": True}),
    "gpt2": ("GPT2", GPT2),
    "granite": ("Granite", {**SHARED, **GRANITE}),
    "gemma": ("Gemma", {**SHARED, "head_dim": 24}),
    "gemma2": ("Gemma2", {**SHARED, **GEMMA2}),
    "gemma3": ("Gemma3", {**SHARED, **GEMMA3}),
    "phi": ("Phi", SHARED),
    "phi3": ("Phi3", {**SHARED, **longrope(256)}),
    # transformers takes the factors of short texts up to the original length.
    "phi3-long": ("Phi3", {**SHARED, **longrope(4)}),
    "gpt-j": ("GPTJ", {**GPT2, "rotary_dim": 8}),
    "gpt-neox": ("GPTNeoX", {**SHARED, "num_key_value_heads": 4}),
    "gpt-neox-in-turn": (
        "GPTNeoX",
        {**SHARED, "num_key_value_heads": 4, "use_parallel_residual": False},
    ),
    "falcon-7b": ("Falcon", FALCON),
    "falcon-40b": ("Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-rw": ("Falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True}),
    "starcoder2": ("Starcoder2", {**SHARED, "sliding_window": 11}),
    "smollm3": ("SmolLM3", {**SHARED, "num_hidden_layers": 5}),
    "glm": ("Glm", {**SHARED, "head_dim": 24}),
    "glm4": ("Glm4", {**SHARED, "head_dim": 16}),
    "olmo2": ("Olmo2", SHARED),
    "olmo3": ("Olmo3", {**SHARED, **OLMO3}),
    "cohere": ("Cohere", SHARED),
    "cohere-plus": ("Cohere", {**SHARED, "use_qk_norm": True}),
    "cohere2": ("Cohere2", {**SHARED, "head_dim": 20, "sliding_window": 9, "num_hidden_layers": 5}),
    "seed-oss": ("SeedOss", {**SHARED, "head_dim": 24}),
    "ernie": ("Ernie4_5", {**SHARED, "head_dim": 20, "use_bias": True}),
    "exaone4": ("Exaone4", {**SHARED, "sliding_window": 9, "num_hidden_layers": 5}),
    "exaone4-wide": (
        "Exaone4",
        {**SHARED, "sliding_window": None, "layer_types": ["full_attention"] * 3},
    ),
    "stablelm": ("StableLm", {**SHARED, "use_qkv_bias": True}),
    "stablelm-parallel": ("StableLm", {**SHARED, "use_parallel_residual": True}),
    "ministral": (
        "Ministral",
        {**SHARED, "head_dim": 16, "sliding_window": 9, "layer_types": LAYER_TYPES},
    ),
}
CLASSES = {"Bert": "BertModel", "GPT2": "GPT2LMHeadModel", "Gemma3": "Gemma3ForCausalLM"}
CONFIGS = {"Gemma3": "Gemma3TextConfig", "Llama4": "Llama4TextConfig"}


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def create_oracle():
    """Return a function that makes transformers' float32 model of (family, settings)."""

    def create(family, settings, seed=0):
        config = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(**settings)
        model = getattr(transformers, CLASSES.get(family, f"{family}ForCausalLM"))(config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(0, 0.15, generator=generator)
                if "norm" in name or "ln_" in name:
                    parameter.add_(0.0 if name.endswith("bias") else 1.0)
            for name, buffer in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    buffer.normal_(0, 0.15, generator=generator)
        return model.eval().float()

    return create


@pytest.fixture(scope="session")
def saved_oracle(create_oracle, tmp_path_factory):
    """Return a function that gives (model, folder) of (family, settings), made once.

    The folder is for reading: other files' tests have the same one.
    """
    made = {}

    def get(family, settings):
        key = repr((family, settings))
        if key not in made:
            model = create_oracle(family, settings)
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            made[key] = model, folder
        return made[key]

    return get


@pytest.fixture(scope="session")
def saved_gguf(saved_oracle, tmp_path_factory):
    """Return a function that gives the float32 file of (family, settings), made once, to read."""
    return SavedFiles(saved_oracle, tmp_path_factory)


@pytest.fixture(scope="session")
def oracle(saved_oracle):
    """Return a function that gives (model, folder) of an entry of MODELS, made once."""
    return lambda name: saved_oracle(*MODELS[name])


@pytest.fixture(scope="session", params=["reference", "cpu"])
def backend(request):
    """Every backend this build has."""
    try:
        return create_backend(request.param, threads=1)
    except (NoKernelError, ImportError) as error:
        pytest.skip(f"no backend {request.param}: {error}")


class Driver:
    """Runs a decoder without scheduler or runner: block tables by hand, one per sequence."""

    def __init__(
        self,
        folder,
        backend,
        block_size=16,
        dtype="auto",
        max_model_len=None,
        stage=None,
        **options,
    ):
        self.backend, self.folder = backend, folder
        opened = open_checkpoint(Path(folder), dtype, max_model_len)
        opened = opened if stage is None else opened.of_stage(stage)
        self.decoder = load_opened(opened, backend, **options)
        self.block_size = block_size
        self.adapters = None
        self.start(1)

    def start(self, num_sequences):
        """Forget all tokens; every sequence gets the blocks of the longest context."""
        blocks = -(-self.decoder.max_model_len // self.block_size)
        spec = self.decoder.rank_config.kv_cache_spec(self.block_size, "float32")
        spec = self.decoder.stage.kv_cache_spec(spec)
        self.kv_cache = self.backend.kv_cache(spec, 1 + num_sequences * blocks)
        # Descending ids, so that nothing works by the blocks lying in order.
        ids = np.arange(num_sequences * blocks, 0, -1, dtype=np.int32)
        self.block_tables = ids.reshape(num_sequences, blocks)
        self.seq_lens = [0] * num_sequences

    def step(self, tokens, wanted="all"):
        """Append tokens to each sequence; return logits of all rows, the last of each, or none.

        A stage that hands its rows on returns None.
        """
        positions = [np.arange(n, n + len(t)) for n, t in zip(self.seq_lens, tokens, strict=True)]
        slots = [
            self.block_tables[i][p // self.block_size] * self.block_size + p % self.block_size
            for i, p in enumerate(positions)
        ]
        self.seq_lens = [n + len(t) for n, t in zip(self.seq_lens, tokens, strict=True)]
        ends = np.cumsum([len(t) for t in tokens])
        rows = {"all": np.arange(ends[-1]), "last": ends - 1, "none": ends[:0]}[wanted]
        arrays = {
            "input_ids": np.concatenate(tokens).astype(np.int32),
            "positions": np.concatenate(positions).astype(np.int32),
            "slot_mapping": np.concatenate(slots).astype(np.int64),
            "block_tables": self.block_tables,
            "query_start_loc": np.concatenate([[0], ends]).astype(np.int32),
            "seq_lens": np.array(self.seq_lens, dtype=np.int32),
            "logits_indices": rows.astype(np.int32),
        }
        if self.adapters is not None:
            arrays["adapters"] = np.array(self.adapters, np.int32)
        batch = self.backend.upload(ForwardBatch(**arrays))
        hidden = self.decoder.forward(batch, self.kv_cache)
        if self.decoder.stage.after is not None:
            return None
        return np.array(self.backend.to_numpy(self.decoder.logits(hidden)))

    def greedy(self, prompts, num_tokens):
        """Return ``num_tokens`` ids per prompt, all prompts in one batch."""
        self.start(len(prompts))
        outputs = [[] for _ in prompts]
        tokens = [np.array(prompt) for prompt in prompts]
        for _ in range(num_tokens):
            best = self.step(tokens, wanted="last").argmax(-1)
            for output, token in zip(outputs, best.tolist(), strict=True):
                output.append(token)
            tokens = [np.array([token]) for token in best]
        return outputs


@pytest.fixture(scope="session")
def create_driver():
    return Driver


@pytest.fixture
def random_prompts():
    """Return a function that gives prompts of the lengths asked for."""

    def make(lengths, vocab_size=211, seed=7):
        generator = np.random.default_rng(seed)
        return [generator.integers(3, vocab_size, length).tolist() for length in lengths]

    return make


@pytest.fixture(scope="session")
def oracle_logits():
    """Return a function that gives transformers' logits of one prompt, (T, V)."""

    def logits(model, prompt):
        with torch.no_grad():
            return model(torch.tensor([prompt])).logits[0].numpy()

    return logits


@pytest.fixture(scope="session")
def oracle_next(oracle_logits):
    """Return a function that gives transformers' most likely id after each of some ids.

    Ids that are each the most likely one after those before them are its greedy ones, by induction:
    a token's logits look at nothing after it. One pass over all of them says so.
    """

    def following(model, prompt, output):
        logits = oracle_logits(model, [*prompt, *output[:-1]])
        return logits[len(prompt) - 1 :].argmax(-1).tolist()

    return following


@pytest.fixture(scope="session")
def adapted(oracle, tmp_path_factory):
    """Return a function that gives (peft's model, the adapter's folder), made once."""
    pytest.importorskip("peft")
    return AdaptedModels(oracle, tmp_path_factory)
