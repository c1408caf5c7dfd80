"""Names that settings have in llama-server, Ollama, TGI and SGLang, next to ours, which are vLLM's.

``docs/coming_from.md`` is the same for readers; a test holds both to each other.
"""

from __future__ import annotations

from quire.core.suggestions import did_you_mean

#: Flags that mean the same as a setting of ours; taken, and not shown in the help.
SAME: dict[str, tuple[str, ...]] = {
    "model": ("-m", "-hf", "--hf-repo", "--model-id", "--model-path"),
    "served_model_name": ("-a", "--alias"),
    "max_model_len": ("-c", "--ctx-size", "--max-total-tokens", "--context-length"),
    "max_num_seqs": ("-np", "--parallel", "--max-running-requests"),
    "max_num_batched_tokens": ("-b", "--batch-size", "--max-batch-prefill-tokens"),
    "threads": ("-t",),
    "tensor_parallel_size": ("--num-shard", "--tp-size", "--tp"),
    "data_parallel_size": ("--dp-size", "--dp"),
}
#: What to write instead of flags that we do not take, which follow it.
_ELSEWHERE = (
    (
        "Leave it out: requests always share the steps.",
        "-cb --cont-batching",
    ),
    (
        "Take --threads, which are for prompts, too.",
        "-tb --threads-batch",
    ),
    (
        "Take --max-num-batched-tokens.",
        "-ub --ubatch-size --max-prefill-tokens",
    ),
    (
        "Take --max-num-seqs.",
        "--max-batch-size",
    ),
    (
        "Take --block-size.",
        "--page-size",
    ),
    (
        "Take --seed.",
        "--random-seed",
    ),
    (
        "Take --host.",
        "--hostname",
    ),
    (
        "Take --ssl-keyfile.",
        "--ssl-key-file",
    ),
    (
        "Take --ssl-certfile.",
        "--ssl-cert-file",
    ),
    (
        "Take --chat-template, a file.",
        "--chat-template-file",
    ),
    (
        "Leave it out: weights are read once and stay in memory.",
        "--mlock --no-mmap",
    ),
    (
        "Leave it out: the route is always there.",
        "--metrics --slots --props --enable-metrics",
    ),
    (
        "Leave it out: the routes of embeddings and of reranking are always there.",
        "--embedding --embeddings --is-embedding --rerank --reranking",
    ),
    (
        "Take --no-playground.",
        "--no-webui",
    ),
    (
        "Set QUIRE_LOG_LEVEL=debug.",
        "-v --verbose",
    ),
    (
        "Leave it out: each request has a line in the log.",
        "--log-requests",
    ),
    (
        "Leave it out: there is no GPU backend yet.",
        "-sm --split-mode -ts --tensor-split -mg --main-gpu -ot --override-tensor --cpu-moe "
        "--n-cpu-moe",
    ),
    (
        "Fetch the file, and name it as MODEL.",
        "-mu --model-url",
    ),
    (
        "Take org/name:Q4_K_M as MODEL.",
        "-hff --hf-file",
    ),
    (
        "Set HF_TOKEN.",
        "-hft --hf-token",
    ),
    (
        "Set HF_HUB_OFFLINE=1.",
        "--offline",
    ),
    (
        "A request says it; --override-generation-config sets the default.",
        "--predict --top-k --top-p --min-p --repeat-penalty",
    ),
    (
        "Leave it out: prefixes are always shared; --kv-offload-bytes keeps more of them.",
        "--cache-reuse --cache-ram",
    ),
    (
        "A request says enable_thinking or reasoning_effort.",
        "--reasoning-budget",
    ),
    (
        "Leave it out: --reasoning-parser is enough.",
        "--enable-reasoning",
    ),
    (
        "Leave it out: what is longer than the context is refused.",
        "--context-shift --no-context-shift",
    ),
    (
        "Leave it out: there is nothing like it here.",
        "--no-warmup --numa --prio --swa-full --disable-cuda-graph --cuda-graphs "
        "--enable-torch-compile --disable-custom-kernels",
    ),
    (
        "Take --scheduling-policy.",
        "--schedule-policy",
    ),
    (
        "Take method and model of --speculative-config.",
        "--speculative-algorithm --speculative-draft-model-path",
    ),
    (
        "Take --master-addr and --master-port.",
        "--dist-init-addr",
    ),
    (
        "Take --enable-lora --lora-modules NAME=FOLDER.",
        "--lora-adapters",
    ),
)
#: Flags that we do not take, and what to write instead.
INSTEAD: dict[str, str] = {
    **{flag: remedy for remedy, flags in _ELSEWHERE for flag in flags.split()},
    "-ctk": "Take --kv-cache-dtype int8 or int4, for keys and values.",
    "-ctv": "Take --kv-cache-dtype int8 or int4, for keys and values.",
    "--cache-type-k": "Take --kv-cache-dtype int8 or int4, for keys and values.",
    "--cache-type-v": "Take --kv-cache-dtype int8 or int4, for keys and values.",
    "-md": 'Take --speculative-config \'{"method": "draft_model", "model": ...}\'.',
    "--model-draft": 'Take --speculative-config \'{"method": "draft_model", "model": ...}\'.',
    "--draft-max": "Take num_speculative_tokens of --speculative-config.",
    "--lora": "Take --enable-lora --lora-modules NAME=FOLDER.",
    "--mmproj": "Name the folder of the checkpoint, which holds the encoder of pictures.",
    "--sleep-idle-seconds": "Take --keep-alive with --load-on-demand.",
    "--models-dir": "Take --load-on-demand; quire list shows the models.",
    "--reasoning-format": "Take --reasoning-parser.",
    "--timeout": "Take the request's timeout; --write-timeout is for clients that do not read.",
    "--n-predict": "A request says max_tokens.",
    "--temp": "A request says temperature; --override-generation-config sets the default.",
    "--max-concurrent-requests": "Take --max-num-queued-reqs; --max-num-seqs is how many run.",
    "--max-input-tokens": "Take --max-model-len, which is prompt and output together.",
    "--max-input-length": "Take --max-model-len, which is prompt and output together.",
    "--max-batch-total-tokens": "Take --max-tokens-in-paged-kv-cache.",
    "--quantize": "Take --quantization.",
    "--sharded": "Take --tensor-parallel-size.",
    "--cuda-memory-fraction": "Take --gpu-memory-utilization.",
    "--mem-fraction-static": "Take --gpu-memory-utilization.",
    "--grammar-backend": "Leave it out: grammars are compiled by llguidance.",
    "--disable-radix-cache": "Take --no-enable-prefix-caching.",
    "--chunked-prefill-size": "Take --max-num-batched-tokens.",
}
#: Commands that we do not have, and what to do instead.
COMMANDS_INSTEAD: dict[str, str] = {
    "push": "There is no registry to push to: copy the file that quire show names as its path.",
    "cp": "Take quire copy.",
    "delete": "Take quire rm.",
    "search": "quire list --catalogue shows the names; quire show --hub asks the hub.",
    "login": "Set HF_TOKEN, which opens gated models of the hub.",
    "signin": "Set HF_TOKEN, which opens gated models of the hub.",
    "signout": "Unset HF_TOKEN.",
    "complete": "Take quire generate MODEL --prompt TEXT.",
    "start": "Take quire serve.",
    "up": "Take quire serve.",
    "collect-env": "Take quire doctor.",
    "perplexity": "Take quire eval.",
    "models": "quire list shows those on this machine; with --catalogue those to be pulled.",
    "tags": "quire list shows those on this machine; with --catalogue those to be pulled.",
    "info": "Take quire show MODEL; quire doctor shows the machine.",
    "inspect": "Take quire show MODEL.",
    "download": "Take quire pull.",
    "remove": "Take quire rm.",
    "uninstall": "Take quire rm MODEL; pip uninstall removes the program.",
    "unload": "Take quire stop MODEL.",
    "plan": "Take quire calc; quire serve MODEL --dry-run says what a start takes.",
    "env": "Take quire doctor.",
    "status": "quire ps shows the models of a server; quire top shows what it does.",
    "logs": "A server logs to its terminal; where quire run starts one, it names the file.",
    "embed": "Ask a server: POST /v1/embeddings; in Python LLM.embed.",
    "tokenize": "Ask a server: POST /tokenize; in Python LLM.get_tokenizer().",
    "update": "pip install --upgrade quire; docs/upgrading.md says what stays.",
    "upgrade": "pip install --upgrade quire; docs/upgrading.md says what stays.",
    "run-batch": "In Python LLM.generate and LLM.chat take all prompts at once.",
    "load": "Take quire run MODEL.",
    "get": "Take quire pull.",
    "import": "Take quire copy FILE NAME.",
    "server": "Take quire serve.",
    "log": "A server logs to its terminal; where quire run starts one, it names the file.",
    "ui": "Take quire serve, and open its address in a browser.",
    "train": "Take quire finetune; for draft heads quire train-heads.",
    "export": "Take quire convert.",
    "estimate": "Take quire calc.",
}
#: Commands that groups do not have, by the group's name.
GROUPS_INSTEAD: dict[str, dict[str, str]] = {
    "quire": COMMANDS_INSTEAD,
    "bench": dict.fromkeys(
        ("throughput", "latency", "sweep", "startup"),
        "Take quire bench serve, which loads a running server.",
    ),
    "calc": dict.fromkeys(("vram", "gpu", "weights"), "Take quire calc memory."),
}
#: Flags of llama-cli for an answer.
_OF_ANSWERS = {
    "--temp": "Take --temperature.",
    "--predict": "Take --max-tokens.",
    "--n-predict": "Take --max-tokens.",
    "--repeat-penalty": "Take --repetition-penalty.",
    "--system-prompt": "Take --system.",
}
_ADDRESS = "Take --base-url HOST:PORT."
#: Flags of commands other than ``serve``, and what to do instead.
COMMAND_FLAGS_INSTEAD: dict[str, dict[str, str]] = {
    "quire": dict.fromkeys(("-m", "--model"), "Take quire serve MODEL, or quire run MODEL."),
    **{
        name: dict.fromkeys(("--host", "--port"), _ADDRESS) for name in ("ps", "stop", "top", "ask")
    },
    "run": {
        **dict.fromkeys(("--host", "--port"), _ADDRESS),
        "--hidethinking": "Leave it out: reasoning is not shown.",
        "--nowordwrap": "Leave it out: words wrap in a terminal only.",
        "--insecure": "Leave it out: HF_ENDPOINT names another hub.",
        **_OF_ANSWERS,
        "-p": "Write it after the model: quire run MODEL PROMPT.",
        "--prompt": "Write it after the model: quire run MODEL PROMPT.",
    },
    "chat": _OF_ANSWERS,
    "generate": {
        **_OF_ANSWERS,
        "--system": "Take quire run MODEL PROMPT --system TEXT.",
        "--system-prompt": "Take quire run MODEL PROMPT --system TEXT.",
    },
    "list": {
        "-a": "Leave it out: all models of this machine are shown.",
        "--all": "Leave it out: all models of this machine are shown.",
    },
    "pull": {"--insecure": "Leave it out: HF_ENDPOINT names another hub."},
    "show": {
        "--license": "Leave it out: show prints the licence.",
        "--parameters": "Leave it out: show prints them as sampling.",
        "--system": "Leave it out: show prints the system prompt.",
        "--template": "Leave it out: show prints the template.",
        "--verbose": "Take --json.",
    },
    "create": {
        "--quantize": "Take quire quantize or quire convert --type, and name what they write.",
        "-q": "Take quire quantize or quire convert --type, and name what they write.",
    },
}
_KEYWORDS = {
    "n_ctx": "max_model_len",
    "num_ctx": "max_model_len",
    "max_seq_len": "max_model_len",
    "max_seq_length": "max_model_len",
    "n_threads": "threads",
    "num_thread": "threads",
    "model_name": "model",
    "load_in_8bit": "quantization='int8'",
    "load_in_4bit": "quantization='nf4'",
    "torch_dtype": "dtype",
}


def meant_setting(name: str, known: dict[str, object]) -> str:
    """Return `` Did you mean X?`` for a keyword that is no setting, empty where nothing is near.

    Args:
        name: As the user wrote it, with underscores.
        known: All settings.
    """
    flags = {flag.lstrip("-").replace("-", "_"): ours for ours in SAME for flag in SAME[ours]}
    found = {**flags, **_KEYWORDS}.get(name)
    return f" Did you mean {found}?" if found else did_you_mean(name, known)
