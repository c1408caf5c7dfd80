"""``LLM``: prompts in, finished outputs out, in this thread; vLLM's shapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Never, Self, TypeAlias, Unpack

import numpy as np

from quire.core.beam_search_params import BeamSearchParams
from quire.core.engine_request import EngineRequest
from quire.core.errors import RequestError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.core.suggestions import did_you_mean
from quire.llm.beams.beam_search import BeamSearch, BeamSearchOutput, width_errors
from quire.llm.engine_args import EngineArgs
from quire.llm.engine_client import Prompt
from quire.llm.interrupts import collect_interrupts
from quire.llm.metric_readings import Metric, readings
from quire.llm.offline.arguments import (
    ChatOptions,
    Params,
    as_adapters,
    as_list,
    as_params,
    check_keywords,
    is_conversation,
    read_chat_options,
)
from quire.llm.outputs.pooling_outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    PooledRequestOutput,
    PoolingOutput,
    Result,
    ScoringOutput,
    check_pairs,
    check_scores,
    class_probabilities,
    embedding,
    pooled,
    scores,
    vector,
)
from quire.llm.pictures.conversations import ConversationPictures
from quire.llm.progress import loading_bar, prompts_bar
from quire.llm.requests.adapter_references import LoRARequest
from quire.llm.requests.prompts import chat_prompt, read_pair
from quire.llm.text_engine import TextEngine
from quire.settings.engine_keywords import settings_help
from quire.settings.keyword_types import EngineKeywords
from quire.system.log import few_lines, get_logger
from quire.text.tokenizers.tokenizer import Tokenizer

log = get_logger(__name__)
Message = dict[str, Any]
Vector: TypeAlias = Literal["last", "mean", "cls", "pooler"]


#: Methods of vLLM's class that there are not, and why.
_CALLERS_CODE = ": the engine runs no code of callers. See quire.evaluation for hidden states."
_IN_MEMORY = ": weights are in the machine's memory. Call shutdown() and load the model again."
_NO_PROFILER = ": see get_metrics() and quire bench."
_NOT_HERE = {
    "apply_model": _CALLERS_CODE,
    "collective_rpc": _CALLERS_CODE,
    "sleep": _IN_MEMORY,
    "wake_up": _IN_MEMORY,
    "start_profile": _NO_PROFILER,
    "stop_profile": _NO_PROFILER,
    # Of other libraries.
    "close": ". Take shutdown(), or with LLM(...) as llm.",
    "tokenize": ". Take get_tokenizer().encode(text).",
    "detokenize": ". Take get_tokenizer().decode(token_ids).",
    "create_chat_completion": ". Take chat(messages).",
    "create_completion": ". Take generate(prompts).",
    "create_embedding": ". Take embed(prompts).",
    "stream": ". Iterate over AsyncLLM.generate.",
}


class LLM:
    """A model loaded for offline use.

    Calls from several threads are taken one after the other: to compute prompts together, give them
    in one call, or use :class:`quire.llm.AsyncLLM`.

    Args:
        model: Folder, GGUF file, hub id, name of ``quire list``, or ``quire-tiny`` (embedded).
        verbose: Whether to log how each setting was chosen, not only one line on the model.
        **keywords: The settings below. Settings of other engines that do nothing here are
            accepted with a line in the log.

    Attributes:
        engine: The engine, one step at a time: ``add_request``, ``step``, ``abort_request``.

    Raises:
        ConfigError, ModelLoadError, NoKernelError: The model cannot be loaded, as the message says.
    """

    def __init__(
        self,
        model: str | PathLike[str] = "quire-tiny",
        *,
        verbose: bool = False,
        **keywords: Unpack[EngineKeywords],
    ) -> None:
        config = EngineArgs(model, **keywords).config
        with loading_bar() as on_progress, few_lines(not verbose):
            self.engine = TextEngine(config, on_progress=on_progress, takes_more=False)
        log.info("%s", self.engine.summary())
        self._request_ids = map(str, count())
        self._turn = threading.RLock()
        self._pictures = ConversationPictures(
            self.engine.model_config.vision, config.model, self.engine.tokenizer
        )

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model of settings that an object holds."""
        return cls(**vars(engine_args))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        *,
        priority: Sequence[int] | None = None,
        **others: Never,
    ) -> list[RequestOutput]:
        """Complete prompts; return one finished output for each, in their order.

        Args:
            prompts: One or many; each is text, token ids, or a dict of one of the two, with
                ``multi_modal_data`` where the model reads pictures.
            sampling_params: Settings for all prompts or one per prompt; None means the model's own
                defaults, their ``max_tokens`` lowered to what fits.
            use_tqdm: Whether to show progress, for several prompts and if stderr is a terminal.
            lora_request: An adapter for all, or one or None per prompt; needs ``enable_lora``.
            priority: One per prompt, lower first, under ``scheduling_policy="priority"``.
            others: None; each is refused with a message that says what to write.

        Raises:
            RequestError: A prompt or setting is wrong; nothing was generated.
            ModelLoadError: An adapter cannot be used; nothing was generated.
            EngineDeadError: A step failed; the engine cannot be used again.
            KeyboardInterrupt: Ctrl-C was pressed; the step ended, and the engine can be used.
        """
        check_keywords("generate", others, ("prompts", "sampling_params", "lora_request"))
        items = [self._pictures.read(prompt) for prompt in as_list(prompts)]
        params = as_params(sampling_params, len(items), self.get_default_sampling_params)
        priorities = [0] * len(items) if priority is None else list(priority)
        if len(priorities) != len(items):
            raise RequestError(
                f"[priority] must be one per prompt ({len(items)}); got {len(priorities)}.",
                "priority",
            )
        adapters = as_adapters(lora_request, len(items))
        attributes = [
            {"priority": level, "lora_request": adapter}
            for level, adapter in zip(priorities, adapters, strict=True)
        ]
        with self._turn:
            self.engine.check_alive()
            return self._run(items, params, attributes, use_tqdm, fit=sampling_params is None)

    def _run(
        self,
        items: Sequence[Prompt],
        params: Sequence[SamplingParams],
        attributes: Sequence[dict[str, Any]],
        use_tqdm: bool,
        *,
        fit: bool,
    ) -> list[RequestOutput]:
        """Complete prompts in this thread's turn; ``fit`` lowers ``max_tokens`` to what fits."""
        self._check_idle()
        # All are read before any is queued, so that a wrong one costs no computation.
        requests = [
            self.engine.prepare(next(self._request_ids), prompt, own, **its)
            for prompt, own, its in zip(items, params, attributes, strict=True)
        ]
        if fit:
            requests = [self.engine.fit_output(request) for request in requests]
        return self._complete(requests, use_tqdm)

    def _check_idle(self) -> None:
        if self.engine.has_unfinished_requests():
            raise RequestError(
                "[generate] the engine must be idle; requests added by add_request are unfinished. "
                "Step until they are done."
            )

    def _complete(self, requests: Sequence[EngineRequest], use_tqdm: bool) -> list[RequestOutput]:
        """Run requests to their ends; return the output of each."""
        ids = [request.request_id for request in requests]
        finished: dict[str, RequestOutput] = {}
        try:
            for request in requests:
                request.params.output_kind = RequestOutputKind.FINAL_ONLY  # of a copy
                self.engine.submit(request)
            with prompts_bar(len(requests), use_tqdm) as advance, collect_interrupts() as seen:
                while self.engine.has_unfinished_requests() and not seen:
                    for output in self.engine.step():
                        finished[output.request_id] = output
                        advance(sum(len(sequence.token_ids) for sequence in output.outputs))
            if seen:
                raise KeyboardInterrupt
            self.engine.check_alive()
        finally:
            for request_id in set(ids) - set(finished):
                self.engine.abort_request(request_id)
        return [finished[request_id] for request_id in ids]

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: bool = False,
    ) -> list[BeamSearchOutput]:
        """Look for each prompt's most likely continuations; return the best ones, best first.

        Args:
            prompts: The same as in :meth:`generate`.
            params: Width, length and so on, for all prompts.
            lora_request: The same as in :meth:`generate`.
            use_tqdm: The same as in :meth:`generate`, for each step.

        Raises:
            RequestError: A prompt or setting is wrong, or a step has failed.
            EngineDeadError: A step failed; the engine cannot be used again.
            KeyboardInterrupt: The same as in :meth:`generate`.
        """
        engine = self.engine
        limit = SamplingParams(max_tokens=params.max_tokens, logprobs=2 * params.beam_width)
        with self._turn:
            engine.check_alive()
            self._check_idle()
            with width_errors(params.beam_width, "beam_width"):
                items = as_list(prompts)
                pairs = zip(items, as_adapters(lora_request, len(items)), strict=True)
                sources = [
                    engine.prepare(next(self._request_ids), prompt, limit, lora_request=adapter)
                    for prompt, adapter in pairs
                ]
            for source in sources:
                engine.engine.check_request(source)
            eos_token_ids = frozenset(engine.model_config.eos_token_ids)
            searches = [BeamSearch(source, params, eos_token_ids) for source in sources]
            try:
                while any(search.requests for search in searches):
                    asked = [one for search in searches for one in search.requests]
                    outputs = iter(self._complete(asked, use_tqdm))
                    for search in searches:
                        search.advance([next(outputs) for _ in search.requests])
            finally:
                for search in searches:
                    for request_id in search.kept | {one.request_id for one in search.requests}:
                        engine.abort_request(request_id)
        return [search.result(self.get_tokenizer()) for search in searches]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation or several; return one finished output for each.

        Args:
            messages: ``[{"role": ..., "content": ...}, ...]``, or a list of such lists; a content
                may be a list of parts, with ``image_url`` parts where the model reads pictures.
            sampling_params, use_tqdm, lora_request: The same as in :meth:`generate`.
            **options: The same as in :class:`~quire.llm.offline.arguments.ChatOptions`.

        Raises:
            RequestError: The model has no chat template, or it refuses the conversation.
            EngineDeadError: A step failed; the engine cannot be used again.
        """
        conversations: Any = [messages] if is_conversation(messages) else messages
        template, variables = read_chat_options(options)
        tokenizer = self.get_tokenizer()
        if template is not None:
            tokenizer = tokenizer.with_chat_template(template)
        prompts = [
            self._pictures.add_to(chat_prompt(one, tokenizer, **variables), one)
            for one in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm, lora_request)

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Vector | None = None,
        pooling_task: str = "embed",
        use_tqdm: bool = True,
    ) -> list[PooledRequestOutput[PoolingOutput]]:
        """Return a vector for each prompt, as an array; any model can do this.

        Args:
            prompts: The same as in :meth:`generate`.
            pooling: The hidden state of the ``last`` token, or of the first (``cls``), the ``mean``
                of all, or what an encoder's ``pooler`` makes; None for the checkpoint's own.
            pooling_task: ``embed``, or ``classify`` for the probabilities of classes.
            use_tqdm: The same as in :meth:`generate`.

        Raises:
            RequestError: The task is unknown, the model has no head for it, or a prompt is wrong.
        """
        if pooling_task not in ("embed", "classify"):
            raise RequestError(
                f"[pooling_task] must be embed or classify; got {pooling_task!r}.", "pooling_task"
            )
        if pooling_task == "embed":
            return [pooled(one, vector) for one in self._vectors(prompts, pooling, use_tqdm)]

        def as_array(probs: list[float]) -> PoolingOutput:
            return PoolingOutput(np.array(probs, np.float32))

        items = as_list(prompts)
        return self._classified(items, [{} for _ in items], as_array, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Vector | None = None,
        use_tqdm: bool = True,
    ) -> list[PooledRequestOutput[EmbeddingOutput]]:
        """Return a vector for each prompt, as a list of floats; as :meth:`encode` otherwise."""
        return [pooled(one, embedding) for one in self._vectors(prompts, pooling, use_tqdm)]

    def classify(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[PooledRequestOutput[ClassificationOutput]]:
        """Return the probabilities of the classes that the model has a head for.

        Raises:
            RequestError: The model has no such head, or a prompt is wrong.
        """
        items = as_list(prompts)
        return self._classified(items, [{} for _ in items], ClassificationOutput, use_tqdm)

    def score(
        self,
        data_1: Prompt | Sequence[Prompt],
        data_2: Prompt | Sequence[Prompt],
        *,
        pooling: Vector | None = None,
        use_tqdm: bool = True,
    ) -> list[PooledRequestOutput[ScoringOutput]]:
        """Return scores of how well pairs of texts match.

        A cross-encoder, with a head of one class, reads both; else the score is a cosine.

        Args:
            data_1: One text, which is compared with each of ``data_2``, or as many texts as there.
            data_2: The texts to compare with.
            pooling, use_tqdm: The same as in :meth:`encode`.

        Raises:
            RequestError: The numbers do not fit, a prompt is wrong, or the model has several
                classes; nothing was computed.
        """
        first, second = as_list(data_1), as_list(data_2)
        check_pairs(len(first), len(second))
        classifier = self.engine.model_config.classifier
        if classifier is None:
            states = self._vectors([*first, *second], pooling, use_tqdm)
            found = [pooled(one, bytes) for one in states]
            return scores(found[: len(first)], found[len(first) :])
        check_scores(classifier)
        firsts = first * len(second) if len(first) == 1 else first
        read = [read_pair(self.get_tokenizer(), *pair) for pair in zip(firsts, second, strict=True)]
        prompts = [token_ids for token_ids, _ in read]
        attributes = [{"second_text": start} for _, start in read]
        return self._classified(
            prompts, attributes, lambda probs: ScoringOutput(probs[0]), use_tqdm
        )

    def _vectors(
        self, prompts: Prompt | Sequence[Prompt], pooling: Vector | None, use_tqdm: bool
    ) -> list[RequestOutput]:
        kind = pooling or self.engine.model_config.pooling.kind
        params = SamplingParams(pooling=kind, max_tokens=None, detokenize=False)
        return self.generate(prompts, params, use_tqdm)

    def _classified(
        self,
        prompts: Sequence[Prompt],
        attributes: Sequence[dict[str, Any]],
        make: Callable[[list[float]], Result],
        use_tqdm: bool,
    ) -> list[PooledRequestOutput[Result]]:
        """Return what ``make`` makes of the probabilities of each prompt's classes."""
        params = SamplingParams(pooling="classify", max_tokens=None, detokenize=False)
        with self._turn:
            self.engine.check_alive()
            given = [params] * len(prompts)
            outputs = self._run(prompts, given, attributes, use_tqdm, fit=False)
        classifier = self.engine.model_config.classifier
        assert classifier is not None, "classes of a model that has none"
        probabilities = partial(class_probabilities, classifier)
        return [pooled(one, lambda values: make(probabilities(values))) for one in outputs]

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self.engine.tokenizer

    @property
    def llm_engine(self) -> TextEngine:
        """The engine, by vLLM's name."""
        return self.engine

    def get_metrics(self) -> list[Metric]:
        """Return what the engine has counted."""
        return list(readings(self.engine.stats()))

    def reset_prefix_cache(self) -> bool:
        """Hide what was computed so far from later prompts; return True."""
        with self._turn:
            self.engine.reset_prefix_cache()
        return True

    def __getattr__(self, name: str) -> Any:
        ours = [known for known in dir(type(self)) if not known.startswith("_")]
        why = _NOT_HERE.get(name) or f".{did_you_mean(name, ours)}"
        raise AttributeError(f"LLM has no {name!r}{why}")

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the model's own sampling settings (``generation_config.json``)."""
        return SamplingParams(**self.engine.default_sampling_params)

    def shutdown(self) -> None:
        """Release the model, after the call that runs; no call follows but this one."""
        with self._turn:
            self.engine.shutdown()
        self._pictures.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()


LLM.__doc__ = f"{LLM.__doc__}\n{settings_help()}"
