"""The engine: requests in, tokens out, one step at a time; text and transport are elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from quire.core.engine_request import EngineRequest
from quire.core.errors import (
    EngineDeadError,
    PromptTooLongError,
    RankDeadError,
    RequestError,
)
from quire.core.metrics import Samples
from quire.core.model.model_config import ModelConfig
from quire.core.outputs import RequestMetrics
from quire.engine.cache.block_lifetimes import BlockLifetimes
from quire.engine.cache.block_observer import CanaryFeed
from quire.engine.cache.block_pool import BlockPool
from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.cache.kv_layout import create_layout
from quire.engine.deadlines import Deadlines
from quire.engine.engine_output import EngineOutput
from quire.engine.executor import Executor
from quire.engine.gates.adapter_gate import LOADING_SECONDS, AdapterGate
from quire.engine.gates.picture_gate import PictureGate
from quire.engine.gates.push_gate import PushGate
from quire.engine.gates.tier_gate import TIER_SECONDS, TierGate
from quire.engine.request import Request, derive_seed, sequence_seed
from quire.engine.scheduling.lookahead import LookaheadPolicy
from quire.engine.scheduling.request_queue import arrival_order
from quire.engine.scheduling.scheduler import Scheduler
from quire.engine.scheduling.sequence_groups import PART, divide
from quire.engine.scheduling.step_limits import check_steps
from quire.engine.stats import StepWatch
from quire.settings.config import EngineConfig
from quire.settings.encoder_settings import fit_to_model
from quire.speculative.pace.controller import Controller

#: Seconds for which pictures are encoded before the engine looks for new requests, while no request
#: decodes.
ENCODING_SECONDS = 0.05
#: Seconds that the engine's owner may sleep while all requests wait for their KV.
HELD_SECONDS = 0.05
#: How long a step waits for grammars when it has nothing else to do: aborts and arrivals wait, too.
UNREADY_SECONDS = 0.005


class Engine:
    """Continuous batching over an executor.

    Not thread-safe: all methods are called from one thread, or between steps under a lock. Where
    execution has one step at a time, an abort therefore never meets a step half done, and frees the
    request's blocks at once; else the request has them until its step has ended.

    Args:
        executor: The loaded model.
        config: The engine's settings; ``model.max_model_len`` None means the model's own.
        model_config: The model's description; ``eos_token_ids`` are all ids that end a sequence.
        clock: Monotonic clock, in seconds. Tests pass a virtual one.
        takes_more: Whether requests may be added while others run, so that a prompt must not take
            whole steps. False for batches that are known beforehand.
        lookahead: The policy that says how many tokens the executor may propose for each request;
            None makes the one that ``config`` asks for.

    Raises:
        ConfigError: Settings contradict each other.
    """

    def __init__(
        self,
        executor: Executor,
        config: EngineConfig,
        model_config: ModelConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        takes_more: bool = True,
        lookahead: LookaheadPolicy | None = None,
    ) -> None:
        config = fit_to_model(config, model_config)
        self.executor = executor
        self.max_model_len = config.model.max_model_len or model_config.max_position_embeddings
        options, cache = config.scheduler, config.cache
        check_steps(options, model_config, self.max_model_len)
        self._use_cache = cache.use_cache
        self._vocab_size = model_config.vocab_size
        self._policy = options.scheduling_policy
        self._seed = config.seed
        self._clock = clock
        self._takes_more = takes_more
        self._num_added = self._num_calls = 0
        self._deadlines = Deadlines()
        self._dead: str | None = None
        self._lifetimes = BlockLifetimes(clock) if cache.kv_cache_metrics else None
        self._canary_feed = CanaryFeed() if cache.kv_canary != "off" else None
        tiers = executor.tiers
        depth = 1 if self._canary_feed else executor.depth  # it looks at blocks between steps
        self._tier_gate = None if tiers is None else TierGate(tiers, depth, clock)
        moves = None if self._tier_gate is None else self._tier_gate.moves
        self._early: list[EngineOutput] = []  # of steps that ended between two calls of `step`
        observers = (self._lifetimes, self._canary_feed, moves)
        spec, num_blocks = executor.kv_cache_spec, executor.num_blocks
        kv = KVCacheManager(
            BlockPool(num_blocks, [o for o in observers if o is not None]),
            spec,
            cache.enable_prefix_caching and cache.use_cache,
            create_layout(cache.kv_layout, self.max_model_len, spec.block_size, num_blocks),
        )
        eos_token_ids = frozenset(model_config.eos_token_ids)
        methods = config.speculative.methods()
        if methods and lookahead is None:
            lookahead = Controller(methods, executor.measure_rows())
        self.scheduler = Scheduler(
            options, kv, eos_token_ids, self._use_cache, clock, takes_more, lookahead, depth
        )
        self._pipeline = self.scheduler.pipeline
        self._adapter_gate: AdapterGate | None = None
        self._picture_gate: PictureGate | None = None
        if tiers is not None and self._tier_gate is not None:
            # The first: of what is loaded no picture is encoded.
            self.scheduler.gates.append(self._tier_gate)
            self._tier_gate.tiers.skip(kv.pool.cached.__contains__)
            if executor.outgoing is not None:
                self.scheduler.gates.append(PushGate(executor.outgoing, self._tier_gate.moves))
        if executor.pictures is not None:
            self._picture_gate = PictureGate(executor.pictures, options.max_num_batched_tokens)
            self.scheduler.gates.append(self._picture_gate)
        if executor.adapters is not None:
            self._adapter_gate = AdapterGate(executor.adapters, config.adapters.max_loras)
            self.scheduler.gates.append(self._adapter_gate)

    @property
    def max_cached_tokens(self) -> int:
        """Tokens of one request that fit in the whole pool."""
        kv = self.scheduler.kv
        return kv.spec.tokens_held(kv.pool.num_blocks - 1, self.max_model_len)

    @property
    def max_total_tokens(self) -> int:
        """Longest prompt plus output, in tokens."""
        # The last token's KV is never written, hence one more than the pool holds.
        return min(self.max_model_len, self.max_cached_tokens + 1)

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            RequestError: The request can never run as asked; nothing of it was kept.
            EngineDeadError: The engine has stopped.
        """
        self.check_alive()
        request_id, params = request.request_id, request.params
        prompt = list(request.prompt_token_ids)
        max_total_tokens = self.check_request(request)
        if abs(request.priority) >= 2**31:
            raise RequestError(
                f"[priority] must be within 32 bits; got {request.priority}.", param="priority"
            )
        if request.adapter is not None and self._adapter_gate is None:
            raise RequestError(
                f"[adapter] an engine without --enable-lora has none; got {request.adapter.name!r}."
                " Start it with the setting.",
                param="model",
            )
        time = self._clock() if request.arrival_time is None else request.arrival_time
        number = self._num_added
        seed = derive_seed(self._seed, number) if params.seed is None else params.seed
        first_params = child_params = params
        if params.n > 1:
            first_params = replace(params, n=1)
            child_params = replace(params, n=1, prompt_logprobs=None)
        stop_token_ids = frozenset(params.stop_token_ids or ())
        call, place = self._num_calls, request.client.place
        leading_key = arrival_order(self._policy, request.priority, time, call, place)
        group = [
            Request(
                request_id=request_id if index == 0 else f"{request_id}#{index}",
                source=request,
                index=index,
                token_ids=prompt,
                num_prompt_tokens=len(prompt),
                max_total_tokens=max_total_tokens,
                params=first_params if index == 0 else child_params,
                stop_token_ids=stop_token_ids,
                seed=sequence_seed(seed, index),
                order=(leading_key, number, index),
                metrics=RequestMetrics(arrival_time=time),
                priority=request.priority if self._policy == "priority" else 0,
            )
            for index in range(params.n)
        ]
        while self._pipeline.is_ending(request_id):
            self._early += self._land(StepWatch(self.scheduler.stats.step_seconds))
        live = self.scheduler.requests
        kept = self.scheduler.kept
        if self.scheduler.sequences.group(request_id) or any(
            one.request_id in live or one.request_id in kept for one in group
        ):
            raise RequestError(
                f"[request_id] must be unique among live requests; got {request_id!r}. "
                "Choose another.",
                param="request_id",
            )
        self._num_added += 1
        self._num_calls += place == 0
        if request.deadline is not None:
            num_live, group_of = len(live), self.scheduler.sequences.group
            self._deadlines.add(request.deadline, request_id, num_live, group_of)
        self._queue(group)

    def _queue(self, group: list[Request]) -> None:
        """Queue the sequences of a request."""
        kv = self.scheduler.kv
        if self._use_cache and kv.layout.shares_blocks:
            # Another part finds the prompt in the prefix cache, but for its pictures.
            finds_prompt = kv.enable_prefix_caching and not group[0].source.pictures
            heads = divide(group, in_parts=self._takes_more and finds_prompt)
            self.scheduler.add(heads[0], heads[1:])
        else:  # nothing is shared
            for sequence in group:
                sequence.token_ids = list(sequence.token_ids)
                self.scheduler.add(sequence)

    def abort_request(self, request_id: str) -> list[EngineOutput]:
        """End a request with ``abort`` in whatever state; its blocks are free on return, or as soon
        as a step with it has ended.

        What is kept of one that has ended is freed, too.

        Returns:
            The last output of each sequence that was alive; empty for unknown and finished ids.
        """
        self.scheduler.kept.release(request_id)
        group = self._pipeline.live(self.scheduler.sequences.group(request_id))
        return [self._pipeline.end(sequence, "abort") for sequence in group]

    def stop_sequence(self, request_id: str, index: int) -> None:
        """End one sequence with ``stop``, because its text holds a stop string; else no effect.

        The caller reports the ending: the engine yields no further output of the sequence.
        """
        for sequence in self._pipeline.live(self.scheduler.sequences.group(request_id)):
            if sequence.index == index:
                self._pipeline.end(sequence, "stop")

    def has_unfinished_requests(self) -> bool:
        """Return whether :meth:`step` has work."""
        return bool(self.scheduler.requests or self._early)

    def seconds_until_work(self) -> float | None:
        """Return the seconds that the owner may sleep: 0 when :meth:`step` has work, None for ever.

        While all requests wait for their KV, a step now and then ends those past their deadlines
        and shows that the engine is alive.
        """
        if self.scheduler.running or len(self.scheduler.waiting) or self._early:
            return 0.0
        if any(gate.is_waiting for gate in self.scheduler.gates):
            return 0.0
        return HELD_SECONDS if self.scheduler.requests else None

    def starts_at_once(self, request: EngineRequest) -> bool:
        """Return whether the step after this one would compute a request's prompt, if added."""
        gate = self._adapter_gate
        if request.adapter and not (gate and gate.adapters.is_ready(request.adapter)):
            return False
        if request.pictures:  # they are encoded first
            return False
        scheduler = self.scheduler
        if scheduler.options.mixed_prefill_tokens == 0 or len(scheduler.waiting):
            return False
        num_decodes = scheduler.pipeline.num_decodes(scheduler.running)
        if len(request.prompt_token_ids) > scheduler.prefill.most_of_one(num_decodes):
            return False
        num_seqs = sum(1 + len(r.pending_children) for r in scheduler.running)
        return num_seqs + min(request.params.n, PART) <= scheduler.options.max_num_seqs

    def step(self, request_arrived: Callable[[], bool] = lambda: False) -> list[EngineOutput]:
        """Run one iteration; return an output for each sequence that has one.

        Where several plans may be under way at once, as many as possible are begun, and the result
        of the first is waited for.

        Args:
            request_arrived: Function that says whether a request has arrived that can start at
                once. It is called within a step that computes a part of a long prompt: once it
                says so, the part is given up for that request.

        Raises:
            EngineDeadError: The step failed as a whole. All requests have ended (finish reason
                ``error``, no outputs) and their blocks are free; the engine takes nothing more.
        """
        self.check_alive()
        outputs, self._early = self._early, []
        outputs += self._end_expired() + self._end_without_adapter()
        watch = StepWatch(self.scheduler.stats.step_seconds)
        while not self._pipeline.is_full and self._begin(watch, request_arrived):
            pass
        return outputs + self._land(watch) if self._pipeline else outputs

    def _begin(self, watch: StepWatch, request_arrived: Callable[[], bool]) -> bool:
        """Plan a step and begin it; return whether there is anything to do."""
        if self._tier_gate is not None:
            self._tier_gate.step_begins(self.scheduler)
        unready = self.executor.unready()
        plan = self.scheduler.schedule(unready | self._without_pictures())
        moves = None if self._tier_gate is None else self._tier_gate.moves
        for feed in (self._pipeline, self._canary_feed, moves):
            if feed is not None:
                feed.fill(plan)
        watch.lap("schedule")
        if not plan.scheduled and not self._pipeline:
            self._wait(bool(unready))
        if not (plan.scheduled or plan.moves_blocks):
            return False
        self._pipeline.begin(plan, self.executor.submit(plan, request_arrived))
        watch.lap("execute")
        return True

    def _wait(self, for_grammars: bool) -> None:
        """Wait a little for what keeps all requests from being planned."""
        if for_grammars:
            self.executor.wait_until_ready(UNREADY_SECONDS)
            return
        if self._adapter_gate is not None:
            self._adapter_gate.wait(LOADING_SECONDS)
        if self._tier_gate is not None:
            self._tier_gate.wait(TIER_SECONDS)

    def check_alive(self) -> None:
        """Return when the engine works.

        Raises:
            EngineDeadError: A step has failed before, or the next one would: a process that
                computes a part of it is gone. All requests have ended then, as in :meth:`step`.
        """
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        try:
            self.executor.check()
        except RankDeadError as error:
            self._die(f"[engine] it has lost a rank: {error} Start it again.")
            raise EngineDeadError(self._dead) from error

    def stats(self) -> Samples:
        """Return counters and gauges by metric stem, labels in Prometheus' form."""
        scheduler = self.scheduler
        num_queued, num_held = len(scheduler.waiting), len(scheduler.held)
        usage = scheduler.kv.usage
        now: Samples = {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": num_queued + num_held,
            'num_requests_waiting_by_reason{reason="capacity"}': num_queued,
            'num_requests_waiting_by_reason{reason="deferred"}': num_held,
            "kv_cache_usage_perc": usage,
            "kv_cache_expected_usage_perc": scheduler.admission.expected_usage(scheduler.running),
            'num_kv_blocks{state="used"}': scheduler.kv.pool.num_used,
            'num_kv_blocks{state="free"}': scheduler.kv.pool.num_free,
            "num_kv_block_references": scheduler.kv.num_references,
            "gpu_cache_usage_perc": usage,
            "kv_cache_fragmentation_perc": scheduler.kv.fragmentation,
        }
        blocks = {} if self._lifetimes is None else self._lifetimes.samples()
        lookahead = {} if scheduler.lookahead is None else scheduler.lookahead.policy.samples()
        gate = {} if self._adapter_gate is None else self._adapter_gate.samples(scheduler.running)
        tiers = {} if self._tier_gate is None else self._tier_gate.tiers.samples()
        values = now | scheduler.stats.samples() | blocks | lookahead | gate | tiers
        return values | self.executor.stats()

    def describe_cache(self) -> str:
        """Return the KV pool, each live request's block table and whether they agree, as text."""
        kv = self.scheduler.kv
        try:
            kv.check_integrity()
            integrity = "ok"
        except AssertionError as error:
            integrity = f"broken: {error}"
        tiers = "" if self._tier_gate is None else f"\n{self._tier_gate.tiers.describe()}"
        return f"{kv.describe()}{tiers}\nintegrity: {integrity}"

    def reset_prefix_cache(self) -> None:
        """Forget what was computed so far; requests under way keep their blocks."""
        self.scheduler.kv.pool.forget_all()
        if self._tier_gate is not None:
            self._tier_gate.tiers.reset()

    def _end_expired(self) -> list[EngineOutput]:
        """End requests that are past their deadlines: nothing more is computed for them."""
        ended: list[EngineOutput] = []
        for deadline, request_id in self._deadlines.due(self._clock):
            for sequence in self._pipeline.live(self.scheduler.sequences.group(request_id)):
                if sequence.source.deadline == deadline:  # else a later request of the same id
                    self.scheduler.stats.timeouts[sequence.stage] += 1
                    ended.append(self._pipeline.end(sequence, "timeout"))
        return ended

    def _end_without_adapter(self) -> list[EngineOutput]:
        """Queue requests whose adapter has come; end those whose adapter cannot be read."""
        scheduler, ended = self.scheduler, list[EngineOutput]()
        gate = self._adapter_gate
        failed = [] if gate is None else gate.step_begins(scheduler)
        for request, failure in failed:
            for sequence in (request, *request.pending_children):
                output = scheduler.sequences.end(sequence, "error")
                output.result.error = failure
                ended.append(output)
        return ended

    def _without_pictures(self) -> frozenset[str]:
        """Encode pictures that requests wait for; return the requests that still wait for some."""
        if self._picture_gate is None:
            return frozenset()
        scheduler = self.scheduler
        num_decodes = sum(request.decodes for request in scheduler.running)
        step_seconds = scheduler.prefill.step_seconds(num_decodes)
        return self._picture_gate.step_begins(
            scheduler, step_seconds if num_decodes else ENCODING_SECONDS
        )

    def _land(self, watch: StepWatch) -> list[EngineOutput]:
        """Wait for the oldest step under way and apply what it brought."""
        ended = self._pipeline.pop()
        try:
            result = ended.handle.result()
        except BaseException as error:
            # What the step left in the cache is unknown, so nothing of it can be used again.
            self._die(f"[engine] a step failed: {type(error).__name__}: {error}. Start it again.")
            if isinstance(error, Exception):
                raise EngineDeadError(self._dead) from error
            raise
        watch.lap("execute")
        watch.move(result.sample_seconds, "execute", "sample")
        self._pipeline.judge(ended, result)
        outputs = self._pipeline.settle(self.scheduler.update_from_output(ended.plan, result))
        watch.lap("update")
        return outputs

    def _die(self, reason: str) -> None:
        self._dead = reason
        self._pipeline.clear()
        for request in list(self.scheduler.requests.values()):
            self.scheduler.sequences.end(request, "error")

    def check_request(self, request: EngineRequest) -> int:
        """Return the total length at which a request's sequences end; nothing is kept of it.

        Raises:
            RequestError: The request can never run as asked.
        """
        prompt, params = request.prompt_token_ids, request.params
        if not prompt:
            raise RequestError("[prompt] must hold at least one token; got none.", param="prompt")
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            raise RequestError(
                f"[prompt] token ids must be in [0, {self._vocab_size}); got "
                f"{min(prompt)} to {max(prompt)}.",
                param="prompt",
            )
        max_num_seqs = self.scheduler.options.max_num_seqs
        if params.n > max_num_seqs:
            raise RequestError(
                f"[n] must be at most --max-num-seqs ({max_num_seqs}); got {params.n}.", param="n"
            )
        longest = self.max_total_tokens
        limit = (
            f"the context length ({self.max_model_len} tokens)"
            if longest == self.max_model_len
            else f"what the KV cache holds ({self.max_cached_tokens} tokens)"
        )
        num_prompt, num_output = len(prompt), params.max_tokens
        if params.pooling is not None:
            return self._check_pooled(num_prompt, longest)
        if num_prompt + 1 > longest:
            raise PromptTooLongError(
                f"[prompt] the prompt and one output token must fit in {limit}; got {num_prompt} "
                "prompt tokens. Shorten the prompt.",
                param="prompt",
            )
        if num_output is not None and num_prompt + num_output > longest:
            raise PromptTooLongError(
                f"[max_tokens] prompt plus max_tokens must fit in {limit}; got {num_prompt} + "
                f"{num_output} = {num_prompt + num_output}. Shorten the prompt or lower "
                "max_tokens.",
                param="max_tokens",
            )
        return longest if num_output is None else num_prompt + num_output

    def _check_pooled(self, num_prompt: int, longest: int) -> int:
        if not self._use_cache:
            raise RequestError("[pooling] needs the KV cache; got --no-use-cache.", param="pooling")
        longest = min(longest, self.max_cached_tokens)
        if num_prompt > longest:
            raise PromptTooLongError(
                f"[prompt] must be at most {longest} tokens to be embedded; got {num_prompt}. "
                "Shorten it.",
                param="prompt",
            )
        return num_prompt + 1
