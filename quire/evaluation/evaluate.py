"""A report from a task's windows: plain data, ready for JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from quire.evaluation import choices
from quire.evaluation.choices import Scored
from quire.evaluation.distributions import LOSS
from quire.evaluation.figures import by_position, compare, mean_loss, perplexity
from quire.evaluation.intervals import Estimate
from quire.evaluation.local_model import LocalModel
from quire.evaluation.scorer import Scorer
from quire.evaluation.task import Task, TaskTokens
from quire.evaluation.windows import Window

#: Opens a bar of (what is done, in all) and returns what moves it, with a remark.
Bar = Callable[[str, float], AbstractContextManager[Callable[[float, str], None]]]


def judge(
    task: Task, work: TaskTokens, model: Scorer, reference: LocalModel | None, bar: Bar
) -> dict[str, Any]:
    """Score the model on the task's windows.

    Args:
        task, work: The task, and the task in the model's tokens.
        model: The model that is judged; in this process where there is a reference.
        reference: The model that it is compared with, or None.
        bar: The progress bar.

    Returns:
        Sections of a report by name: ``text``, ``comparison``, ``positions``, ``choices``. Figures
        are objects of ``value``, ``low`` and ``high``, which are None where there is no interval.
    """
    report: dict[str, Any] = {}
    if work.windows:
        report |= _judge_text(task, work, model, reference, bar)
    if work.questions:
        report["choices"] = _judge_choices(task, work, model, reference, bar)
    return report


def _judge_text(
    task: Task, work: TaskTokens, model: Scorer, reference: LocalModel | None, bar: Bar
) -> dict[str, Any]:
    windows, report = work.windows, dict[str, Any]()
    with bar("text", _num_tokens(windows)) as advance:

        def on_tokens(count: int) -> None:
            advance(count, "")

        if reference is None:
            losses = list(model.losses(windows, on_tokens))
        else:
            assert isinstance(model, LocalModel), model
            tables = list(model.compare(reference, windows, on_tokens))
            losses = [table[:, LOSS] for table in tables]
            report["comparison"] = asdict(compare(tables))
    assert work.cut is not None and task.text is not None
    report["text"] = {
        "file": str(task.text),
        "num_tokens": work.num_text_tokens,
        "num_counted": sum(map(len, losses)),
        "num_windows": len(windows),
        "window": work.cut.window,
        "stride": work.cut.stride or work.cut.room,
        "loss": asdict(mean_loss(losses)),
        "perplexity": asdict(perplexity(losses)),
    }
    if task.long_context:
        buckets = by_position(losses, [window.first for window in windows])
        report["positions"] = [asdict(bucket) for bucket in buckets]
    return report


def _judge_choices(
    task: Task, work: TaskTokens, model: Scorer, reference: LocalModel | None, bar: Bar
) -> dict[str, Any]:
    scored = _score_choices(work, model, "choices", bar)
    other = None
    if reference is not None:
        other = _score_choices(work, reference, "choices, reference", bar)
    report: dict[str, Any] = {
        "file": str(task.choices),
        "chat": task.chat,
        "num_questions": work.num_questions,
        "num_asked": len(work.questions),
        "num_answers": sum(question.answer is not None for question in work.questions),
    }
    for name, normalized in (("accuracy", False), ("accuracy_normalized", True)):
        report[name] = _plain(choices.accuracy(scored, normalized))
        if other is not None:
            report[f"reference_{name}"] = _plain(choices.accuracy(other, normalized))
            difference = choices.accuracy_difference(scored, other, normalized)
            report[f"{name}_difference"] = _plain(difference)
    report["questions"] = [
        asdict(one) | {"pick": one.pick, "pick_normalized": one.pick_normalized} for one in scored
    ]
    return report


def _score_choices(work: TaskTokens, model: Scorer, label: str, bar: Bar) -> list[Scored]:
    with bar(label, _num_tokens(work.choice_windows)) as advance:
        losses = model.losses(work.choice_windows, lambda count: advance(count, ""))
        return choices.score(work.questions, losses)


def _num_tokens(windows: Sequence[Window]) -> int:
    return sum(len(window.token_ids) for window in windows)


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else asdict(estimate)
