"""Measuring a space, by a clock that tells made-up times; what is real here is the memory."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import nasformer
import tiny  # noqa: F401 - one thread
from latency.fake import MICRO, FakeClock
from nasformer.errors import UserError
from nasformer.latency import profile as profiles
from nasformer.latency.measure import (
    CpuClock,
    OnnxRunner,
    TimedNet,
    cpu_threads,
    make_runner,
    peak_of,
    quartiles,
    time_nets,
)
from nasformer.latency.profile import Profile, covering_archs, key_of, make_profile, other_archs
from nasformer.models.registry import get_space

CPU = torch.device("cpu")


def profiled(monkeypatch: pytest.MonkeyPatch, clock: Any, **options: Any) -> Profile:
    monkeypatch.setattr(profiles, "make_clock", lambda device, threads: clock)
    return make_profile(MICRO, device=CPU, threads=1, nets=6, holdout=4, rounds=3, quiet=True, **options)


@pytest.fixture(scope="module")
def steady() -> Profile:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return profiled(monkeypatch, FakeClock(MICRO))


def test_a_profile_says_how_it_was_made(steady: Profile) -> None:
    setup = steady.setup
    assert (setup.device, setup.backend, setup.batch_size, setup.threads) == ("cpu", "eager", 1, 1)
    assert (setup.precision, setup.clock, setup.rounds) == ("fp32", "fake time", 3)
    assert steady.machine.versions["torch"] == torch.__version__
    assert (steady.holdout.nets, len(steady.holdout.measured_ms)) == (4, 4)


def test_one_thread_is_the_default_and_torch_has_its_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def clock(device: torch.device, threads: int) -> Any:
        seen.append(torch.get_num_threads())
        return FakeClock(MICRO)

    monkeypatch.setattr(profiles, "make_clock", clock)
    with cpu_threads(2):
        for chosen in ({}, {"threads": 3}):
            found = nasformer.make_profile(MICRO, nets=3, holdout=1, rounds=1, quiet=True, **chosen)
            assert found.setup.threads == seen[-1] == chosen.get("threads", 1)
        assert torch.get_num_threads() == 2


def test_the_python_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nasformer.latency.measure.VISIT_SECONDS", 0.001)
    text = (Path(__file__).parents[2] / "docs" / "latency.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    small = code.replace("threads=1", "threads=1, nets=3, holdout=2, rounds=1, quiet=True")
    assert small != code
    found: dict[str, Any] = {}
    exec(compile(small, "latency.md", "exec"), found)
    assert found["budget"].limits()["latency_ms"] == (None, 20)
    assert found["space"].costs(found["space"].root.smallest())["latency_ms"] > 0


def test_measured_times_do_not_depend_on_the_drift_of_the_machine(
    steady: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = steady.holdout.measured_ms
    busy = profiled(monkeypatch, FakeClock(MICRO, drift=1e-3)).holdout.measured_ms
    ratios = [busy[arch] / calm[arch] for arch in calm]
    # The machine got several times slower meanwhile; all nets share one factor, that of the median pace.
    assert max(ratios) / min(ratios) < 1.03
    assert min(ratios) > 2


def test_memory_is_predicted_to_the_byte(steady: Profile) -> None:
    assert steady.holdout.p90_memory_error is not None
    assert steady.holdout.p90_memory_error < 0.02
    runner = make_runner(MICRO, "eager", CPU, 1, 1)
    arch = MICRO.root.largest()
    with torch.inference_mode():
        peak, logits = peak_of(runner.net(arch), runner.images)
    weights = 4 * MICRO.cost(arch).params
    assert steady.memory_bytes(MICRO.plan(arch)) == weights + 256 + peak
    assert logits.shape == (1, 10)


def test_the_chosen_nets_cover_more_kinds_than_random_ones() -> None:
    space = get_space("esformer-s0")

    def kinds(archs: Any) -> int:
        return len({key_of(segment) for arch in archs for segment in space.plan(arch)})

    chosen = covering_archs(space, 12, random.Random(0))
    rng = random.Random(0)
    assert chosen[:2] == [space.root.smallest(), space.root.largest()]
    assert kinds(chosen) > kinds([*chosen[:2], *(space.root.sample(rng) for _ in range(10))])


def test_the_hold_out_has_none_of_the_others() -> None:
    rng = random.Random(0)
    chosen = covering_archs(MICRO, 10, rng)
    others = other_archs(MICRO, 20, rng, chosen)
    assert len(set(others)) == 20
    assert not set(others) & set(chosen)


def test_nets_share_layers_but_no_net_has_one_twice() -> None:
    runner = make_runner(MICRO, "eager", CPU, 1, 1)
    blocks = [{"num_heads": 2, "mlp_ratio": 2.0}] * 4
    same = MICRO.arch({"embed_dim": 32, "blocks": blocks})
    layers, again = runner.layers(same), runner.layers(same)
    assert len({id(layer) for layer in layers}) == len(layers)
    assert [id(layer) for layer in layers] == [id(layer) for layer in again]


@pytest.mark.parametrize("name", ["autoformer-micro", "trionet-micro"])
def test_the_layers_together_do_what_the_net_does(name: str) -> None:
    space = get_space(name)
    runner, arch = make_runner(space, "eager", CPU, 2, 1), space.sample(3)
    x = runner.images
    with torch.inference_mode():
        for layer in runner.layers(arch):
            x = layer(x)
        assert torch.equal(x, runner.net(arch)(runner.images))


def test_onnxruntime_runs_a_layer() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    runner = OnnxRunner(MICRO, batch_size=1, threads=1)
    norm, x = torch.nn.LayerNorm(8).eval(), torch.randn(1, 4, 8)
    assert torch.allclose(torch.from_numpy(runner.session(norm, x)(x.numpy())), norm(x), atol=1e-5)


@pytest.mark.slow
def test_onnxruntime_runs_nets_and_their_layers() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    runner, arch = OnnxRunner(MICRO, batch_size=1, threads=1), MICRO.root.smallest()
    expected = runner.model(arch)(torch.from_numpy(runner.images))
    assert torch.allclose(torch.from_numpy(runner.net(arch)(runner.images)), expected, atol=1e-4)
    x = runner.images
    for step in runner.layers(arch):  # one session a kind, so the logits are not those of the whole
        x = step(x)
    assert x.shape == expected.shape


@pytest.mark.parametrize(
    ("backend", "device", "said"),
    [("tensorrt", "cpu", "unknown backend 'tensorrt'; there are: eager"), ("onnxruntime", "cuda", "on the CPU")],
)
def test_other_backends_are_refused(backend: str, device: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_runner(MICRO, backend, torch.device(device), 1, 1)


def test_every_net_is_visited_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nasformer.latency.measure.VISIT_SECONDS", 0.001)
    nets = [TimedNet(lambda x: x), TimedNet(lambda x: x, layers=[lambda x: x, lambda x: x])]
    paces = time_nets(nets, 1, CpuClock(1), reference=lambda x: sum(range(1000)), rounds=4)
    assert [len(net.visits) for net in nets] == [4, 4]
    assert len(paces) == 8
    assert [len(times) for times in nets[1].layer_seconds(pace=1.0)] == [4, 4]
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)


def test_one_thread_is_timed_by_its_own_processor_time() -> None:
    assert (CpuClock(1).name, CpuClock(2).name) == ("processor time", "wall time")
