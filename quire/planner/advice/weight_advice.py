"""Advice on the weight format for a card: what fits, what bounds a step, and why; arithmetic alone.

A step of B sequences reads all weights once, and takes two operations a weight and sequence. It is
bound by reading up to the critical batch, ``peak * bits / 8 / 2 / bandwidth``, and by arithmetic
above it. Formats of 4 bits are expanded to bf16 before they are multiplied, so their critical batch
is the lowest. KV is read as well; other work, and what a program reaches of a peak, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.plurals import counted
from quire.planner.advice.measured_formats import MEASURED_METHODS, QUALITY_MODEL
from quire.planner.advice.named_cards import Card


@dataclass(frozen=True, slots=True)
class AdvisedFormat:
    """A format that weights are stored in, and the arithmetic that multiplies them.

    Attributes:
        name: The format's usual name.
        bits: Bits of a weight, with its share of scales and zeros.
        unit: Type of number whose peak binds it, of
            :class:`~quire.planner.advice.named_cards.Card`.
    """

    name: str
    bits: float
    unit: str

    def critical_batch(self, card: Card) -> float:
        """Return the sequences of a step above which arithmetic binds it, on a card that has it."""
        return card.peaks[self.unit] / card.read * self.bits / 16


BF16 = AdvisedFormat("bf16", 16, "bf16")
FP8 = AdvisedFormat("FP8", 8, "fp8")
INT8 = AdvisedFormat("INT8 (W8A8)", 8, "int8")
#: Groups of 128 with a scale in float16 and a zero of 4 bits.
INT4 = AdvisedFormat("INT4 (AWQ or GPTQ)", 4 + (16 + 4) / 128, "bf16")
FORMATS = (BF16, FP8, INT8, INT4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLoad:
    """The load that shall run.

    Attributes:
        num_parameters: Weights of the model.
        kv_bytes: Bytes of KV of one sequence at its full length; 0 where the model's shape is not
            known.
        batch: Number of sequences at once.
        context: Number of tokens of each sequence.
    """

    num_parameters: int
    kv_bytes: int
    batch: int
    context: int

    @classmethod
    def of_model(
        cls, num_parameters: int, spec: KVCacheSpec | None, batch: int, context: int
    ) -> ServingLoad:
        """Return the load of a model; without ``spec`` its KV is not known."""
        kv_bytes = 0 if spec is None else spec.num_blocks(context) * spec.block_bytes
        return cls(num_parameters=num_parameters, kv_bytes=kv_bytes, batch=batch, context=context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """Equal cards that share a model.

    Attributes:
        card: The card that each of them is.
        count: Number of cards.
        memory: Bytes that may be used on all of them together.
    """

    card: Card
    count: int
    memory: float

    @classmethod
    def with_share(cls, card: Card, count: int, memory: int | None, fraction: float) -> Cards:
        """Return cards of which a part of the memory is for weights and KV.

        Args:
            card: The card that each of them is.
            count: Number of cards.
            memory: Bytes of each card; None for all that it has.
            fraction: Part of those.
        """
        each = (memory or card.memory) * fraction
        return cls(card=card, count=count, memory=each * count)

    def __str__(self) -> str:
        return self.card.title if self.count == 1 else f"{self.count} x {self.card.title}"

    def step_seconds(self, form: AdvisedFormat, load: ServingLoad) -> float:
        """Return the least time of a step that decodes, by reading and arithmetic."""
        read = load.num_parameters * form.bits / 8 / self.card.read
        compute = 2.0 * load.num_parameters * load.batch / self.card.peaks[form.unit]
        return (max(read, compute) + load.batch * load.kv_bytes / self.card.read) / self.count


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A format on these cards.

    Attributes:
        form: The format.
        weight_bytes: Bytes of all weights.
        fits: Whether weights and the KV of the batch fit.
        sequences: Number of sequences that fit next to the weights; None where KV is not known.
        critical_batch: The result of :meth:`AdvisedFormat.critical_batch` for the card.
        speedup: Speed of a step of the batch, at most, relative to bf16.
    """

    form: AdvisedFormat
    weight_bytes: float
    fits: bool
    sequences: int | None
    critical_batch: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The format to take, and why.

    Attributes:
        choice: The format's name; None where nothing fits.
        reasons: A sentence each, the most important first.
        options: Every format that the card multiplies.
    """

    choice: str | None
    reasons: list[str]
    options: list[FormatChoice]


def advise(cards: Cards, load: ServingLoad) -> Advice:
    """Choose: FP8 where the card multiplies it and it fits, else by memory and batch."""
    options = [_option(form, cards, load) for form in FORMATS if form.unit in cards.card.peaks]
    by_form = {option.form: option for option in options}
    chosen = _choose(by_form)
    shown = by_form[chosen or INT4]
    reasons = [_memory(shown, cards, load)]
    if chosen is not None:
        reasons[:0] = [_why(chosen, by_form, cards, load)]
    else:
        reasons.append(_missing(shown, cards, load))
    reasons.append(_batch(shown, cards, load))
    if chosen is INT4:
        reasons.append(_methods())
    return Advice(chosen.name if chosen else None, reasons, options)


def _option(form: AdvisedFormat, cards: Cards, load: ServingLoad) -> FormatChoice:
    weights = load.num_parameters * form.bits / 8
    room = cards.memory - weights
    return FormatChoice(
        form=form,
        weight_bytes=weights,
        fits=room >= load.batch * load.kv_bytes,
        sequences=max(0, int(room // load.kv_bytes)) if load.kv_bytes else None,
        critical_batch=form.critical_batch(cards.card),
        speedup=cards.step_seconds(BF16, load) / cards.step_seconds(form, load),
    )


def _choose(by_form: dict[AdvisedFormat, FormatChoice]) -> AdvisedFormat | None:
    fitting = [form for form, option in by_form.items() if option.fits]
    if FP8 in fitting:
        return FP8
    if INT4 in fitting and INT8 in fitting:
        return max(INT4, INT8, key=lambda form: by_form[form].speedup)
    return INT4 if INT4 in fitting else None


def _why(
    chosen: AdvisedFormat,
    by_form: dict[AdvisedFormat, FormatChoice],
    cards: Cards,
    load: ServingLoad,
) -> str:
    """Return the first reason: why this format and not the one that would come before it."""
    title, peaks = cards.card.title, cards.card.peaks
    four, critical = by_form[INT4].speedup, by_form[INT4].critical_batch
    if chosen is FP8:
        return (
            f"FP8 first: the {title} multiplies it at {peaks['fp8'] / 1e12:,.0f} TFLOP/s "
            f"({peaks['fp8'] / peaks['bf16']:.1f} x bf16) and it halves the bytes, so a step gains "
            f"at any batch: {by_form[FP8].speedup:.2f} x at batch {load.batch:,}; INT4 would gain "
            f"{four:.2f} x with half the bits to be accurate in."
        )
    eight = by_form[FP8 if FP8 in by_form else INT8]
    if not eight.fits:
        return (
            f"Memory is tight: {_need(eight, load)} in 8 bits do not fit in "
            f"{gigabytes(cards.memory)}, 4 bits do; a step gains {four:.2f} x at batch "
            f"{load.batch:,}."
        )
    none = "" if FP8 in by_form else f"the {title} does not multiply FP8, and "
    if chosen is INT4:
        return (
            f"4 bits: {none}at batch {load.batch:,} a step reads "
            f"{gigabytes(by_form[INT4].weight_bytes)} of weights in place of "
            f"{gigabytes(by_form[BF16].weight_bytes)} and gains {four:.2f} x, where INT8 gains "
            f"{by_form[INT8].speedup:.2f} x."
        )
    return (
        f"8 bits: {none}batch {load.batch:,} is above INT4's critical batch, {critical:.1f}, where "
        f"arithmetic binds: INT8 gains {by_form[INT8].speedup:.2f} x, INT4 {four:.2f} x."
    )


def _memory(option: FormatChoice, cards: Cards, load: ServingLoad) -> str:
    verdict = "fit" if option.fits else "do not fit"
    if option.sequences is None:
        rest = "KV is not counted, as a number of parameters has no shape"
    else:
        rest = f"{counted(option.sequences, 'sequence')} of {counted(load.context, 'token')} would"
    return (
        f"Memory: {_need(option, load)} of {option.form.name} {verdict} in "
        f"{gigabytes(cards.memory)} of {cards}; {rest}."
    )


def _missing(option: FormatChoice, cards: Cards, load: ServingLoad) -> str:
    need = option.weight_bytes + load.batch * load.kv_bytes
    count = -int(-need // (cards.memory / cards.count))
    return (
        f"Nothing fits: even 4 bits need {gigabytes(need)}, which is "
        f"{count:,} x {cards.card.title}, or a smaller batch, context or KV type."
    )


def _batch(option: FormatChoice, cards: Cards, load: ServingLoad) -> str:
    """Return what the batch has to do with it, whichever format was chosen."""
    limit = option.critical_batch
    side = "reading binds" if load.batch < limit else "arithmetic binds"
    return (
        f"Mind the batch: at {load.batch:,} {side} {option.form.name}, whose critical batch is "
        f"{limit:.1f}; INT4 gains less and less from batch {INT4.critical_batch(cards.card):.1f} "
        f"and nothing over bf16 from {BF16.critical_batch(cards.card):.1f}."
    )


def _methods() -> str:
    losses = ", ".join(f"{ratio - 1:.2%} ({name})" for name, ratio in MEASURED_METHODS.items())
    return (
        f"AWQ or GPTQ: {QUALITY_MODEL}'s perplexity rises by {losses} at 4 bits in groups of 32, "
        "of which the first two do not differ for sure; measure your own model with quire eval."
    )


def _need(option: FormatChoice, load: ServingLoad) -> str:
    return needed(option.weight_bytes, load)


def needed(weight_bytes: float, load: ServingLoad) -> str:
    """Return weights and the KV of a batch as text."""
    weights = f"{gigabytes(weight_bytes)} of weights"
    if not load.kv_bytes:
        return weights
    return f"{weights} and {gigabytes(load.batch * load.kv_bytes)} of KV"


def gigabytes(count: float) -> str:
    """Return bytes as decimal gigabytes."""
    return f"{count / 1e9:,.1f} GB"
