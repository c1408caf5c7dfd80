"""``quire convert``: a checkpoint folder to one GGUF file, or to files of ranks."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import click

from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.settings.parallel_options import ParallelOptions

#: What a file can call tokens that end a text.
ENDINGS = ("eos", "eot", "eom")
TYPES = (
    "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q5_1", "q5_0", "q4_k_m", "q4_k_s",
    "iq4_nl", "iq4_xs", "q4_1", "q4_0", "mxfp4_moe", "q3_k_l", "q3_k_m", "q3_k_s", "iq3_m",
    "iq3_s", "iq3_xs", "iq3_xxs", "q2_k", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s",
    "tq2_0", "tq1_0",
)  # fmt: skip


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--type", "type_name", type=click.Choice(TYPES, case_sensitive=False), default="f16",
    show_default=True,
    help="Type of the matrices; vectors stay float32. K-types are llama.cpp's mixes. "
    f"One of {', '.join(TYPES).lower()}.", metavar="TYPE",
)  # fmt: skip
@click.option("--pure", is_flag=True, help="One type for all matrices, not a mix.")
@click.option(
    "--imatrix", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Weights of inputs' errors, a file of quire imatrix or llama-imatrix.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(min=1), metavar="N",
    help="Compute threads. [default: all cores]",
)  # fmt: skip
@click.option(
    "--tensor-parallel-size", "-tp", type=int, metavar="N",
    help="Write a file for each rank to the folder OUT, not a GGUF file: N shards of each layer.",
)  # fmt: skip
@click.option(
    "--pipeline-parallel-size", "-pp", type=int, metavar="N",
    help="Write a file for each rank to the folder OUT: N stages of layers.",
)  # fmt: skip
@click.option(
    "--stage-layers", metavar="N,...", help="Layers of each stage. [default: as many in each]"
)
@click.option(
    "--enable-expert-parallel", "-ep", is_flag=True,
    help="Give each rank whole experts, not a part of each.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace OUT when it is there.")
def convert(
    model: str,
    out: Path,
    tensor_parallel_size: int | None,
    pipeline_parallel_size: int | None,
    stage_layers: str | None,
    enable_expert_parallel: bool,
    force: bool,
    **of_files: Any,
) -> None:
    """Write MODEL (folder, hub id or quire-tiny) to the GGUF file OUT.

    The file holds weights, configuration, tokenizer, chat template and sampling defaults.
    """
    if enable_expert_parallel and tensor_parallel_size is None:
        raise ConfigError("[convert] --enable-expert-parallel needs --tensor-parallel-size.")
    if tensor_parallel_size is not None or pipeline_parallel_size is not None:
        from quire.cli.models.convert_ranks import convert_ranks

        _refuse_options_of_files()
        ranks = ParallelOptions(
            tensor_parallel_size=1 if tensor_parallel_size is None else tensor_parallel_size,
            pipeline_parallel_size=1 if pipeline_parallel_size is None else pipeline_parallel_size,
            stage_layers=stage_layers,
            enable_expert_parallel=enable_expert_parallel,
        )
        convert_ranks(model, out, ranks, force)
        return
    if stage_layers is not None:
        raise ConfigError("[convert] --stage-layers needs --pipeline-parallel-size.")
    _check_place(out, force)
    from quire.checkpoints.gguf.gguf_writer import write_gguf
    from quire.checkpoints.gguf.importance_matrix import read_importance_matrix
    from quire.llm.progress import loading_bar
    from quire.models.gguf.gguf_export import GgufExport
    from quire.store.float_checkpoint import resolve_float_folder
    from quire.system.machine import read_machine
    from quire.text.tokenizers.gguf_vocabulary import gguf_vocabulary

    folder, imatrix = resolve_float_folder(model, "convert", "MODEL"), of_files["imatrix"]
    export = GgufExport(
        folder,
        of_files["type_name"].upper(),
        pure=of_files["pure"],
        importance=None if imatrix is None else read_importance_matrix(imatrix),
        threads=of_files["threads"] or read_machine().num_cores,
    )
    vocabulary = gguf_vocabulary(folder, export.config.vocab_size)
    generation = _generation_metadata(folder, export.config, vocabulary)
    metadata = export.metadata | vocabulary | generation
    try:
        with loading_bar() as on_progress:
            write_gguf(out, metadata, export.tensors, on_progress)
    except OSError as error:
        raise ConfigError(f"[convert] OUT must be writable; got {out}: {error.strerror}.") from None
    count = Counter(tensor.layout.name for tensor in export.tensors)
    types = ", ".join(f"{number} {name}" for name, number in count.most_common())
    click.echo(f"{out}: {out.stat().st_size / 1e6:,.1f} MB, tensors are {types}")


def _refuse_options_of_files() -> None:
    """Refuse options that say what a GGUF file holds."""
    context = click.get_current_context()
    for name in ("type_name", "pure", "imatrix", "threads"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            flag = "--" + name.removesuffix("_name")
            raise ConfigError(
                f"[convert] {flag} must be left out with --tensor-parallel-size and "
                "--pipeline-parallel-size, which divide tensors as they are. Quantize the "
                "checkpoint first."
            )


def _check_place(out: Path, force: bool) -> None:
    """Refuse an OUT that cannot be written, before anything is computed.

    Raises:
        ConfigError: OUT exists and ``force`` is not given, is not a file, or its folder does not
            exist.
    """
    if not out.parent.is_dir():
        raise ConfigError(f"[convert] OUT must be in a folder that exists; got {out}.")
    # A link to nothing is there too.
    if not os.path.lexists(out):
        return
    if not force:
        raise ConfigError(f"[convert] OUT must not exist; got {out}. Give --force to replace it.")
    if out.exists() and not out.is_file():
        raise ConfigError(f"[convert] OUT must be a file to be replaced; got {out}.")


def _generation_metadata(
    folder: Path, config: ModelConfig, vocabulary: dict[str, Any]
) -> dict[str, Any]:
    """Return start and end tokens that the tokenizer does not name, and sampling defaults."""
    from quire.llm.requests.generation_defaults import GGUF_KEYS, read_generation_config

    generation = read_generation_config(folder, "auto")
    metadata: dict[str, Any] = {}
    for key, ours in GGUF_KEYS.items():
        if ours not in generation.sampling:
            continue
        value = generation.sampling[ours]
        # Off is -1 or 0 to us, and 0 in a file, which has no negative integers here.
        metadata[key] = max(0, int(value)) if ours == "top_k" else float(value)
    bos = "tokenizer.ggml.bos_token_id"
    if config.bos_token_id is not None and bos not in vocabulary:
        metadata[bos] = config.bos_token_id
    own = vocabulary.get("tokenizer.ggml.eos_token_id")
    ids = [own, *config.eos_token_ids, *generation.eos_token_ids]
    distinct = list(dict.fromkeys(i for i in ids if i is not None))
    # Ids that the model cannot produce are no tokens of the file.
    possible = [i for i in distinct if 0 <= i < config.vocab_size]
    left_out = [i for i in distinct if i not in possible[: len(ENDINGS)]]
    if left_out:
        click.echo(f"quire: end tokens {left_out} have no place in OUT", err=True)
    endings = zip(ENDINGS, possible, strict=False)
    return metadata | {f"tokenizer.ggml.{name}_token_id": i for name, i in endings}
