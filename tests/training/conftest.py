"""Heads with random weights over a random vocabulary, and examples without a target."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

V, D = 61, 32


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    torch.set_num_threads(1)


@pytest.fixture
def vocabulary():
    from quire.training.target import HeadVocabulary

    generator = torch.Generator().manual_seed(1)
    embedding, head = (torch.randn(V, D, generator=generator) for _ in range(2))
    return HeadVocabulary(embedding, head, torch.rand(D, generator=generator) + 0.5)


@pytest.fixture
def create_head(vocabulary):
    """Return a function that makes a head of a method with weights far from their first values."""
    from quire.training.draft_layer import LayerShape
    from quire.training.eagle import EagleHead
    from quire.training.eagle3 import Eagle3Head
    from quire.training.medusa import TrainableMedusaHeads
    from quire.training.mtp import MTPHead

    shape = LayerShape(D, 48, 4, 2, 8)
    some = torch.tensor([0, 3, 4, 11, 12, 40, 60])
    makers = {
        "medusa": lambda: TrainableMedusaHeads(vocabulary, 4, 2),
        "medusa-own-head": lambda: TrainableMedusaHeads(vocabulary, 3, 1, own_head=True),
        "eagle": lambda: EagleHead(shape, vocabulary),
        "eagle3": lambda: Eagle3Head(shape, vocabulary, (0, 2, 5)),
        "eagle3-draft-vocabulary": lambda: Eagle3Head(shape, vocabulary, (0, 2, 5), some),
        "eagle3-own-head": lambda: Eagle3Head(shape, vocabulary, (0, 2, 5), own_head=True),
        "mtp": lambda: MTPHead(shape, vocabulary, 6),
    }

    def make(name):
        torch.manual_seed(9)
        head = makers[name]()
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        return head

    return make


HEADS = [
    "medusa", "medusa-own-head", "eagle", "eagle3", "eagle3-draft-vocabulary", "eagle3-own-head",
    "mtp",
]  # fmt: skip


@pytest.fixture(params=HEADS)
def head(request, create_head):
    return create_head(request.param)


@pytest.fixture
def examples(tmp_path):
    """Four roll-outs of random tokens with random states of four times D."""
    from quire.training.examples import Examples
    from quire.training.rollouts import RollOut

    rng = np.random.default_rng(3)
    sizes = [(9, 4), (14, 3), (6, 5), (12, 11)]  # the last has no start, the third none either
    rollouts = [RollOut(rng.integers(0, V, n).astype(np.int32), p) for n, p in sizes]
    count = sum(n for n, _ in sizes)
    states = torch.randn(count, 4 * D, generator=torch.Generator().manual_seed(4)).bfloat16()
    path = tmp_path / "states.bin"
    path.write_bytes(states.view(torch.int16).numpy().tobytes())
    return Examples(rollouts, path, 4 * D)
