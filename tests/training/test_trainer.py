"""Training lowers the loss, goes on from its checkpoint, and ends with its budget."""

from itertools import islice

import pytest

torch = pytest.importorskip("torch")

from quire.training.acceptance import draft_all, measure_acceptance  # noqa: E402
from quire.training.objectives import Objective, loss_of  # noqa: E402
from quire.training.trainer import Budget, Trainer  # noqa: E402
from tests.sizes import sized  # noqa: E402


class Stopped(Exception):
    """Raised by a callback to stop a run."""


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_losses_of_later_tokens_count_less(create_head, examples, kind):
    head, (batch,) = create_head(kind), islice(examples.batches(), 1)
    with torch.no_grad():
        first, mean, got = (
            loss_of(head, batch, Objective(depths, decay))
            for depths, decay in ((1, 1.0), (2, 1.0), (2, 0.25))
        )
    second = 2 * mean - first
    assert abs(second - first) > 0.01
    torch.testing.assert_close(got, (first + 0.25 * second) / 1.25)


def test_a_head_learns_the_targets_choices(head, examples, tmp_path):
    objective = Objective(3, regression=0.1)
    (batch,) = islice(examples.batches(), 1)
    with torch.no_grad():
        before = loss_of(head, batch, objective)
    # The rate has hardly begun to rise when the run is stopped, however long its steps take.
    options = {"budget": Budget(10**6, in_steps=True), "rate": sized(40.0, 20.0)}
    trainer = Trainer(head, examples, objective, tmp_path / "c.pt", **options)
    with pytest.raises(Stopped):
        trainer.run(stop_after(sized(30, 60)))
    with torch.no_grad():
        after = loss_of(head, batch, objective)
    assert after < 0.8 * before


def stop_after(steps):
    def on_step(progress):
        if progress.steps == steps:
            raise Stopped

    return on_step


def test_a_run_goes_on_from_its_checkpoint(create_head, examples, tmp_path):
    path, objective = tmp_path / "c.pt", Objective(2)
    first = Trainer(create_head("eagle3"), examples, objective, path, budget=Budget(3600))
    with pytest.raises(Stopped):
        first.run(stop_after(5))
    first.save()
    second = Trainer(create_head("eagle3"), examples, objective, path, budget=Budget(3600))
    assert second.progress == first.progress
    for one, other in zip(first.head.parameters(), second.head.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    with pytest.raises(Stopped):
        second.run(stop_after(8))
    assert second.progress.seconds > first.progress.seconds


@pytest.mark.parametrize(("budget", "steps"), [(Budget(0), 0), (Budget(3, in_steps=True), 3)])
def test_a_spent_budget_trains_no_more(budget, steps, create_head, examples, tmp_path):
    path = tmp_path / "c.pt"
    for _ in range(2):
        trainer = Trainer(create_head("mtp"), examples, Objective(2), path, budget=budget)
        trainer.run()
        assert trainer.progress.steps == steps


def test_a_budget_of_steps_gives_the_same_weights(create_head, examples, tmp_path):
    heads = []
    for name in "ab":
        budget = Budget(4, in_steps=True)
        trainer = Trainer(
            create_head("eagle"), examples, Objective(2), tmp_path / name, budget=budget
        )
        trainer.run()
        heads.append(trainer.head)
    for one, other in zip(heads[0].parameters(), heads[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_labels_are_what_the_target_makes_of_the_positions(create_head, examples):
    """A head that reproduces the target's logits has the entropy of its choices as its loss."""
    head = create_head("eagle")
    batch = next(examples.batches())
    from quire.training.objectives import labels_of

    labels = labels_of(batch, head.vocabulary.head)
    for row, count in enumerate(batch.counts.tolist()):
        states = batch.states[row, batch.starts[row, :count], :32]
        want = (states @ head.vocabulary.head.T).softmax(-1)
        torch.testing.assert_close(labels[row, :count], want)
        assert not labels[row, count:].any()


def test_acceptance_of_a_trained_head_is_that_of_its_drafts(create_head, examples):
    head = create_head("medusa")
    acceptance = measure_acceptance(lambda batch: draft_all(head, batch, 4), examples.batches())
    assert all(kept <= equal for kept, equal in zip(acceptance.kept, acceptance.equal, strict=True))
    assert 1.0 <= acceptance.tokens_per_round <= 5.0
