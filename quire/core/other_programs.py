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
    "pipeline_parallel_size": ("--pp-size", "--pp"),
    "tokenizer": ("--tokenizer-path", "--tokenizer-config-path"),
    "data_parallel_size": ("--dp-size", "--dp"),
}
#: What to write instead of flags that we do not take, which follow it.
_ELSEWHERE = (
    (
        "Leave it out: requests always share the steps.",
        "-cb --cont-batching -nocb --no-cont-batching",
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
        "--random-seed -s",
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
        "--mlock --no-mmap --mmap --direct-io -dio --no-repack --check-tensors",
    ),
    (
        "Leave it out: the route is always there.",
        "--metrics --slots --props --enable-metrics --prometheus-port",
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
        "-v --verbose -lv --verbosity --log-verbosity",
    ),
    (
        "Leave it out: each request has a line in the log.",
        "--log-requests",
    ),
    (
        "Leave it out: there is no GPU backend yet.",
        "-sm --split-mode -ts --tensor-split -mg --main-gpu -ot --override-tensor --cpu-moe "
        "--n-cpu-moe -dev -devd --device-draft -ngld --gpu-layers-draft --base-gpu-id",
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
        "--predict --top-k --top-p --min-p --repeat-penalty --temperature --sampling-defaults "
        "--preferred-sampling-params",
    ),
    (
        "A request says it.",
        "--presence-penalty --frequency-penalty --repeat-last-n --samplers --logit-bias "
        "--ignore-eos",
    ),
    (
        "Leave it out: prefixes are always shared; --kv-offload-bytes keeps more of them.",
        "--cache-reuse --cache-ram -cram --cache-prompt --slot-prompt-similarity -sps "
        "--slot-save-path",
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
        "--context-shift --no-context-shift --keep",
    ),
    (
        "Leave it out: there is nothing like it here.",
        "--no-warmup --warmup --numa --prio --poll --swa-full --kv-unified -kvu "
        "--disable-cuda-graph --cuda-graphs --cuda-graph-bs --cuda-graph-max-bs "
        "--enable-torch-compile --disable-custom-kernels --skip-server-warmup "
        "--disable-overlap-schedule --enable-mixed-chunk --sampling-backend "
        "--validation-workers --waiting-served-ratio --max-waiting-tokens --usage-stats",
    ),
    (
        "Take --scheduling-policy.",
        "--schedule-policy",
    ),
    (
        "Take method and model of --speculative-config.",
        "--speculative-algorithm --speculative-draft-model-path --spec-type",
    ),
    (
        "Take --master-addr and --master-port.",
        "--dist-init-addr",
    ),
    (
        "Take --enable-lora --lora-modules NAME=FOLDER.",
        "--lora-adapters --lora-scaled --lora-paths",
    ),
    (
        "Take --no-enable-prefix-caching.",
        "--no-cache-prompt",
    ),
    (
        "Take quire doctor.",
        "--list-devices",
    ),
    (
        "Take --default-chat-template-kwargs.",
        "--chat-template-kwargs",
    ),
    (
        "Take --root-path.",
        "--api-prefix",
    ),
    (
        "Take --allowed-origins.",
        "--cors-allow-origin",
    ),
    (
        "Take --log-format json.",
        "--json-output",
    ),
    (
        "Take --otlp-traces-endpoint.",
        "--otlp-endpoint",
    ),
    (
        "Take --shutdown-timeout.",
        "--graceful-termination-timeout",
    ),
    (
        "Take --uvicorn-log-level.",
        "--log-level-http",
    ),
    (
        "Take --max-num-queued-reqs.",
        "--max-queued-requests",
    ),
    (
        "Take --enable-expert-parallel.",
        "--ep --ep-size",
    ),
    (
        "Take --num-redundant-experts.",
        "--ep-num-redundant-experts",
    ),
    (
        "Take --max-loras.",
        "--max-loras-per-batch",
    ),
    (
        "Take --max-cpu-loras.",
        "--max-loaded-loras",
    ),
    (
        "Take --kv-offload-bytes.",
        "--enable-hierarchical-cache --hicache-ratio --hicache-size",
    ),
    (
        "Take --disaggregate 1p1d.",
        "--disaggregation-mode --disaggregation-transfer-backend",
    ),
    (
        "Take --scheduling-policy priority.",
        "--enable-priority-scheduling",
    ),
    (
        "Take --spec-method ngram --spec-tokens N.",
        "--speculate",
    ),
    (
        "Take --memory, which loaded models share.",
        "--models-max",
    ),
    (
        "Take quire create, which gives a model settings of its own.",
        "--models-preset",
    ),
    (
        "A request says it, as response_format.",
        "-j --json-schema --grammar --grammar-file",
    ),
    (
        "Leave it out: the checkpoint says it.",
        "--override-kv --rope-scale --rope-freq-base --rope-freq-scale --rope-factor "
        "--yarn-orig-ctx --json-model-override-args",
    ),
    (
        "Leave it out: memory is planned at the start; --memory bounds it.",
        "-fit --fit --fit-target -fitt --fit-ctx -fitc",
    ),
    (
        "Leave it out: answers are the same in any batch.",
        "--enable-deterministic-inference",
    ),
    (
        "Leave it out: usage has cached_tokens.",
        "--enable-cache-report",
    ),
    (
        "Send stderr to a file; QUIRE_LOG_LEVEL says how much.",
        "--log-file --log-disable",
    ),
    (
        "Leave it out: limits of a request are fixed.",
        "--max-best-of --max-stop-sequences --max-top-n-tokens --max-client-batch-size "
        "--payload-limit",
    ),
    (
        "Set HF_HUB_CACHE.",
        "--huggingface-hub-cache --weights-cache-override",
    ),
    (
        "Take num_speculative_tokens of --speculative-config.",
        "--draft --draft-n --draft-min --draft-n-min --draft-p-min --speculative-num-steps "
        "--speculative-num-draft-tokens",
    ),
    (
        "Take tree_width of --speculative-config.",
        "--speculative-eagle-topk",
    ),
    (
        "Take model of --speculative-config.",
        "-hfd --hf-repo-draft",
    ),
)
#: Flags that we do not take, and what to write instead.
INSTEAD: dict[str, str] = {
    **{flag: remedy for remedy, flags in _ELSEWHERE for flag in flags.split()},
    "-ctk": "Take --kv-cache-dtype int8 or int4, for keys and values.",
    "-ctv": "Take --kv-cache-dtype int8 or int4, for keys and values.",
    "--cache-type-k": "Take --kv-cache-dtype int8 or int4, for keys and values.",
    "--cache-type-v": "Take --kv-cache-dtype int8 or int4, for keys and values.",
    "-mm": "Name the folder of the checkpoint, which holds the encoder of pictures.",
    "--mmproj-url": "Name the folder of the checkpoint, which holds the encoder of pictures.",
    "-to": "Take the request's timeout; --write-timeout is for clients that do not read.",
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
