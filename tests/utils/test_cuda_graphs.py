"""What is replayed is what would be run. A GPU's recordings are stood in for by running their work again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nasformer
from nasformer.train.evaluate import SubnetEvaluator
from nasformer.train.loop import Trainer, train_model, train_supernet
from nasformer.utils import cuda_graphs
from nasformer.utils.cuda_graphs import WARMUP_RUNS, CudaGraphs, Recording

OPTIONS: dict[str, Any] = {"autoformer-micro": {"patch_size": 4}, "esformer-s0": {}}
SPACE = nasformer.get_space("autoformer-micro", img_size=8, patch_size=4, in_chans=1, num_classes=10)


class Rerun:
    """In place of a pool of a GPU's memory: recorded work is run again.

    As on a GPU, a replay puts gradients where the one before it has put them, and takes what memory it needs from the
    other parts of the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self.replayed = 0
        self.gradients = dict[Any, list[Tensor | None]]()  # by recording

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        yield

    def record(self, work: Any) -> Any:
        state, gradients = torch.get_rng_state(), torch.is_grad_enabled()
        work()  # a recording runs no kernel, and so changes no statistics and no random numbers
        torch.set_rng_state(state)

        def replay() -> None:
            self.replayed += 1
            with torch.set_grad_enabled(gradients):
                work()
            self.reuse_memory(work.__self__)

        return replay

    def reuse_memory(self, recording: Recording) -> None:
        new = getattr(recording, "gradients", [])
        places = self.gradients.setdefault(recording, new)
        recording.gradients = places
        with torch.no_grad():
            for place, gradient in zip(places, new, strict=True):
                if place is not None and gradient is not None:
                    place.copy_(gradient)
            for other, gradients in self.gradients.items():
                for gradient in gradients if other is not recording else []:
                    if gradient is not None:
                        gradient.fill_(torch.nan)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has trainings and evaluations on the CPU record as on a GPU."""
    monkeypatch.setattr(cuda_graphs, "Pool", Rerun)
    monkeypatch.setattr(CudaGraphs, "has_room", lambda self, device: True)
    monkeypatch.setattr(CudaGraphs, "gpu_waits", lambda self, device: True)
    monkeypatch.setattr(CudaGraphs, "on", classmethod(lambda cls, device, asked=True: cls() if asked else None))


def digits() -> nasformer.Data:
    return nasformer.load_data("digits")


def trained_weights(recipe: nasformer.Recipe, **options: Any) -> dict[str, Tensor]:
    supernet = nasformer.Supernet(SPACE)
    train_supernet(supernet, digits(), recipe, quiet=True, **options)
    return supernet.state_dict()


@pytest.mark.parametrize("options", [{}, {"sandwich": 2, "inplace_distillation": True, "accumulate": 2}, {"ema": 0.9}])
def test_supernet_trained_with_recordings_is_that_without(graphs: None, options: dict[str, Any]) -> None:
    recipe = {"iterations": 3 * WARMUP_RUNS, "batch_size": 16, **options}
    recorded = trained_weights(nasformer.Recipe(**recipe))
    usual = trained_weights(nasformer.Recipe(**recipe, graphs=False))
    assert all(torch.equal(recorded[name], usual[name]) for name in usual)


def test_features_of_a_teacher_are_learned_alike(graphs: None) -> None:
    teacher = SPACE.build(SPACE.root.largest())
    recipe = {"iterations": 3 * WARMUP_RUNS, "batch_size": 16, "teacher_features": 2.0, "teacher_answers": "soft"}
    recorded = trained_weights(nasformer.Recipe(**recipe), teacher=teacher)
    usual = trained_weights(nasformer.Recipe(**recipe, graphs=False), teacher=teacher)
    assert all(torch.equal(recorded[name], usual[name]) for name in usual)


@pytest.mark.parametrize("space", [*OPTIONS])
def test_model_trained_with_recordings_is_that_without(graphs: None, space: str) -> None:
    size = 8 if space == "autoformer-micro" else 32
    chosen = nasformer.get_space(space, img_size=size, in_chans=1, num_classes=10, **OPTIONS[space])
    data = nasformer.load_data("digits", img_size=size)
    states = []
    for on in (True, False):
        torch.manual_seed(0)
        model = chosen.build(chosen.root.smallest())
        train_model(model, data, nasformer.Recipe(iterations=WARMUP_RUNS + 3, batch_size=4, graphs=on), quiet=True)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


def test_subnets_are_judged_alike(graphs: None) -> None:
    supernet, arch = nasformer.Supernet(SPACE), SPACE.sample(seed=1)
    recorded, usual = (SubnetEvaluator(supernet, batches(), graphs=on) for on in (True, False))
    expected = usual.evaluate(arch, "holdout")
    assert [recorded.evaluate(arch, "holdout") for _ in range(WARMUP_RUNS + 2)] == [expected] * (WARMUP_RUNS + 2)
    assert recorded.graphs
    assert recorded.graphs.recordings


def test_parts_are_replayed_once_they_came_often(graphs: None) -> None:
    replays, linear, x = CudaGraphs(), nn.Linear(3, 2), torch.randn(4, 3)
    for _ in range(WARMUP_RUNS + 3):
        outputs = replays("part", lambda x, weights: (F.linear(x, *weights),), x, list(linear.parameters()))
        outputs[0].sum().backward()
    pool = replays.pools["outputs"]
    assert isinstance(pool, Rerun)
    assert pool.replayed == 2 * 3
    assert torch.allclose(linear.bias.grad, torch.full((2,), 4.0 * (WARMUP_RUNS + 3)))  # type: ignore[arg-type]


def test_outputs_of_parts_that_take_turns_share_their_place(graphs: None) -> None:
    replays, x = CudaGraphs(), torch.randn(4, 3)
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    with torch.no_grad():
        for _ in range(WARMUP_RUNS + 1):
            (one,) = replays("first", lambda x, weights: (first(x),), x, list(first.parameters()))
            (two,) = replays("second", lambda x, weights: (second(x),), x, list(second.parameters()))
    assert one.data_ptr() == two.data_ptr()
    assert torch.equal(two, second(x))


def test_what_keeps_the_gpu_busy_is_not_recorded(graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False, False] * WARMUP_RUNS)
    monkeypatch.setattr(CudaGraphs, "gpu_waits", lambda self, device: next(answers))
    replays, linear, x = CudaGraphs(), nn.Linear(3, 2), torch.randn(4, 3)
    for _ in range(2 * WARMUP_RUNS):
        replays("part", lambda x, weights: (F.linear(x, *weights),), x, list(linear.parameters()))
    assert not replays.recordings


def test_what_cannot_be_recorded_runs_as_usual(graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Rerun, work: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Rerun, "record", refuse)
    replays, linear, x = CudaGraphs(), nn.Linear(3, 2), torch.randn(4, 3)
    results = [
        replays("part", lambda x, weights: (F.linear(x, *weights),), x, list(linear.parameters()))[0]
        for _ in range(WARMUP_RUNS + 3)
    ]
    assert all(torch.equal(result, linear(x)) for result in results)
    assert "capturing" in replays.failure


def test_statistics_are_right_after_a_recording_that_failed(graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd, "grad", no_memory)
    replays, norm, x = CudaGraphs(), nn.BatchNorm1d(3), torch.randn(4, 3)
    usual = nn.BatchNorm1d(3)
    tensors = [*norm.parameters(), norm.running_mean, norm.running_var]

    def forward(x: Tensor, weights: Any) -> tuple[Tensor]:
        weight, bias, mean, variance = weights
        return (F.batch_norm(x, mean, variance, weight, bias, training=True),)

    for _ in range(WARMUP_RUNS + 1):
        replays("part", forward, x, tensors)  # type: ignore[arg-type]
        usual(x)
    assert "memory" in replays.failure
    assert torch.equal(norm.running_mean, usual.running_mean)  # type: ignore[arg-type]


def no_memory(*args: Any, **options: Any) -> Any:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory")


def test_recordings_of_weights_that_have_been_moved_are_made_anew(graphs: None) -> None:
    supernet, x, arch = nasformer.Supernet(SPACE).eval(), torch.randn(2, 1, 8, 8), SPACE.root.largest()
    replays = CudaGraphs()
    with torch.no_grad():
        for _ in range(WARMUP_RUNS + 1):
            with supernet.replaying(replays):
                supernet(x, arch)
        assert replays.recordings
        supernet.load_state_dict({name: 2 * tensor for name, tensor in supernet.state_dict().items()}, assign=True)
        with supernet.replaying(replays):
            moved = supernet(x, arch)
        assert not replays.recordings
        assert torch.equal(moved, supernet(x, arch))


def test_compilation_forgets_recordings(graphs: None) -> None:
    supernet = nasformer.Supernet(SPACE)
    with supernet.replaying(CudaGraphs()), torch.no_grad():
        for _ in range(WARMUP_RUNS + 1):
            supernet(torch.randn(2, 1, 8, 8), SPACE.root.largest())
        assert supernet.graphs
        assert supernet.graphs.recordings
        supernet.compile()
        assert not supernet.graphs.recordings
    assert supernet.graphs is None


def test_nothing_is_recorded_on_a_cpu() -> None:
    supernet = nasformer.Supernet(SPACE)
    trainer = Trainer(supernet, batches(), nasformer.Recipe(), sampler=lambda step: [SPACE.sample(step)], quiet=True)
    assert trainer.graphs is None
    assert CudaGraphs.on(torch.device("cuda"), enabled=False) is None


def batches() -> Any:
    from nasformer.data.loaders import Batches
    from nasformer.data.options import AugmentOptions

    return Batches(digits(), AugmentOptions(), 16, seed=0)
