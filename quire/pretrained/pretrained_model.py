"""A loaded model with ``generate`` as transformers' users know it; ``LLM`` does the work."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from quire.checkpoints.config_fields import read_json
from quire.core.errors import ConfigError
from quire.llm.llm import LLM
from quire.pretrained.foreign_options import read_options
from quire.pretrained.generation_config import (
    ARGUMENTS,
    OF_SAMPLING,
    OPTIONS,
    GenerationConfig,
    GenerationPlan,
)
from quire.pretrained.quantized_folder import TemporaryFolder
from quire.pretrained.saved_folder import save_folder
from quire.pretrained.token_rows import like, read_prompts, read_rows
from quire.system.log import get_logger

log = get_logger(__name__)


class StoredConfig(dict[str, Any]):
    """``config.json``, whose entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"config.json has no entry {name!r}")
        return self[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the entries."""
        return dict(self)


class PretrainedModel:
    """A model that generates; :meth:`AutoModelForCausalLM.from_pretrained` makes it.

    Args:
        folder: The checkpoint, or its GGUF file.
        keywords: Settings of the engine.
        made: The temporary folder that the checkpoint lies in; it is removed with this object.

    Attributes:
        config: ``config.json``.
        generation_config: The checkpoint's own settings; may be replaced.
        device: The device that the model is on.
        llm: The engine.
    """

    def __init__(
        self, folder: Path, keywords: dict[str, Any], made: TemporaryFolder | None = None
    ) -> None:
        self._folder, self._made = folder, made
        stored = {} if folder.is_file() else read_json(folder / "config.json")
        self.config = StoredConfig(stored)
        self.generation_config = GenerationConfig.from_pretrained(folder)
        self.llm = LLM(folder, **keywords)
        self.device = "cpu"

    def generate(self, inputs: Any = None, generation_config: Any = None, **options: Any) -> Any:
        """Return prompts and what follows them, a row for each sequence.

        Args:
            inputs: (B, T) token ids, in lists, an array or a tensor; None for ``bos_token_id``
                alone. The name ``input_ids`` is taken, too.
            generation_config: Settings that take the place of the model's.
            **options: Options of :data:`quire.pretrained.generation_config.OPTIONS`, which take the
                place of both, and ``attention_mask`` (B, T).

        Returns:
            (B * num_return_sequences, longest) of the kind that was given, filled up by the pad
            token at the end.

        Raises:
            ConfigError: An option is unknown, or asks for what is not done.
            RequestError: A prompt is wrong or too long.
        """
        given = read_options("generate", ARGUMENTS | OPTIONS, {"inputs": inputs, **options})
        settings = self.generation_config
        if generation_config is not None:
            settings = settings.with_options(generation_config.to_dict())
        settings = settings.with_options({n: v for n, v in options.items() if n in OPTIONS})
        unused = [name for name in OF_SAMPLING if options.get(name) is not None]
        if unused and not settings.do_sample:
            log.warning("[generate] %s changes nothing without do_sample", ", ".join(unused))
        asked = inputs if given["input_ids"] is None else given["input_ids"]
        if asked is None and settings.bos_token_id is None:
            raise ConfigError("[generate] input_ids must be given; got none, and no bos_token_id.")
        asked = [[settings.bos_token_id]] if asked is None else asked
        ends = self._ends(generation_config, options)
        own = ends if ends is not None else self.llm.engine.model_config.eos_token_ids
        pad = settings.pad_token_id
        prompts = read_prompts(asked, given["attention_mask"], pad, own)
        plan = GenerationPlan(settings, ends)
        outputs = self.llm.generate(
            prompts, [plan.params(len(prompt)) for prompt in prompts], False
        )
        rows = [
            [*row, *sequence.token_ids]
            for row, output in zip(read_rows("input_ids", asked), outputs, strict=True)
            for sequence in output.outputs
        ]
        return like(asked, rows, pad if pad is not None else next(iter(own), 0))

    def _ends(self, config: Any, options: dict[str, Any]) -> tuple[int, ...] | None:
        """Return the ids that end sequences where the caller says so; the model knows its own."""
        ends = options.get("eos_token_id")
        if ends is None and config is not None:
            ends = config.eos_token_id
        if ends is None:
            return None
        return (ends,) if isinstance(ends, int) else tuple(ends)

    def save_pretrained(self, save_directory: str | PathLike[str]) -> None:
        """Copy the checkpoint as it was loaded, tokenizer included, to a new or an empty folder.

        Raises:
            ConfigError: The folder holds something.
        """
        save_folder("save_pretrained", self._folder, Path(save_directory))

    def eval(self) -> PretrainedModel:
        """Return this model: it is never trained."""
        return self

    def to(self, device: Any) -> PretrainedModel:
        """Return this model.

        Raises:
            ConfigError: The model would have to move.
        """
        if str(device).split(":")[0] != self.device:
            raise ConfigError(f"[to] the model is on {self.device} and stays there; got {device}.")
        return self

    def close(self) -> None:
        """Release the model and its temporary folder; no call follows but this one."""
        self.llm.shutdown()
        if self._made is not None:
            self._made.close()

    def __enter__(self) -> PretrainedModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
