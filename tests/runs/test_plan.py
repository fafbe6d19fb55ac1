"""What is said before a run: the share that fits, the costs, the times, the disk."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm

import tiny
from nasformer.cli.main import main
from nasformer.models.registry import get_space
from nasformer.models.storage import load_model
from nasformer.runs import plan, pretrained
from nasformer.runs.options import PlanCommand
from nasformer.runs.plan import (
    StageTime,
    StageTimes,
    disk_needed,
    finish_trainings,
    shorter_ways,
    survey_space,
    warnings_of,
)
from nasformer.space.budget import Budget
from nasformer.supernet.storage import save_supernet
from nasformer.supernet.supernet import Supernet
from nasformer.train import speed
from nasformer.train.loop import Trainer
from nasformer.train.recipe import Recipe
from small_run import SETTINGS, refused, words

SMALL = "test_resnet"  # 0.4 M parameters
needs_small = pytest.mark.skipif(not timm.is_model(SMALL), reason=f"this timm has no {SMALL}")
FAST = ["--draws", "300", "--steps", "1", "--device", "cpu"]


def planned(capsys: Any, folder: Path, *more: str, **changes: Any) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words("plan", folder, **changes), *FAST, "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_plan_of_a_small_run(capsys: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "new"
    run.parent.mkdir()
    found = planned(capsys, run)
    assert not run.exists()
    assert (found["name"], found["data"], found["space"]["budget"]) == ("autoformer-micro", "digits", "params <= 120K")
    share = found["space"]["share"]
    assert share["draws"] == 300
    assert 0.3 < share["low"] < share["fitting"] / 300 < share["high"] < 0.9
    params, within = found["space"]["space"]["params"], found["space"]["within"]["params"]
    assert params["smallest"] == tiny.MICRO.cost(tiny.MICRO.root.smallest()).params == within["smallest"]
    assert params["largest"] == tiny.MICRO.cost(tiny.MICRO.root.largest()).params > 120_000 >= within["largest"]
    assert params["smallest"] < within["median"] < params["median"] < params["largest"]
    time = found["time"]
    assert time["train"]["steps"] == time["retrain"]["steps"] == 2 * 8
    assert time["search"]["candidates"] == 8
    for stage, count in (("train", "steps"), ("search", "candidates"), ("retrain", "steps")):
        each = time[stage]["seconds_per_candidate" if stage == "search" else "seconds_per_step"]
        assert time[stage]["seconds"] == pytest.approx(each * time[stage][count])
        assert each > 0


def test_of_slow_steps_two_are_enough(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pretrained net on two cores takes half a minute a step: a plan of dozens of them would be no quick look."""
    steps, step = list[int](), Trainer.step

    def counted(self: Trainer, number: int, *batch: Any) -> None:
        steps.append(number)
        step(self, number, *batch)

    monkeypatch.setattr(Trainer, "step", counted)
    monkeypatch.setattr(plan, "ENOUGH", 0.0)
    assert planned(capsys, tmp_path / "run", "--steps", "8")["time"]["train"]["seconds"] > 0
    assert [number for number in steps if number < 8] == [0, 1, 0, 1]  # timed, of the supernet and of the retraining


def test_large_images_are_timed_a_few_at_a_time(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 128 photos takes half a minute a step on two cores; a part of it tells as much."""
    sizes, step = set[tuple[int, int]](), Trainer.step

    def slow(self: Trainer, number: int, images: Any, targets: Any) -> Any:
        sizes.add((len(images), len(targets)))
        time.sleep(0.05)
        return step(self, number, images, targets)

    whole = planned(capsys, tmp_path / "run")["time"]["train"]
    monkeypatch.setattr(speed, "TIMED_VALUES", 8 * 8 * 16)
    monkeypatch.setattr(Trainer, "step", slow)
    part = planned(capsys, tmp_path / "run")["time"]["train"]
    assert sizes == {(16, 16)}
    share = 16 / SETTINGS["train"]["batch_size"]
    assert part["seconds_per_step"] > 0.05 / share
    # by the images alone it would be equal; gradients, which do not depend on them, count several times
    assert whole["memory_bytes"] <= part["memory_bytes"] < whole["memory_bytes"] / share / 2


def test_the_plan_in_words(capsys: Any, tmp_path: Path) -> None:
    assert main([*words("plan", tmp_path / "run"), *FAST]) == 0
    text, progress = capsys.readouterr()
    for stage in ("architectures: ", "steps of the supernet: ", "timing a candidate", "steps of the retraining: "):
        assert stage in progress
    for part in ("satisfiable", "95 % interval", "parameters", "supernet training", "search", "retraining", "disk: "):
        assert part in text
    assert not (tmp_path / "run").exists()


def test_without_baselines_there_is_nothing_to_say_of_them(capsys: Any, tmp_path: Path) -> None:
    found = planned(capsys, tmp_path / "run")
    assert found["time"]["baselines"] == []
    assert "baselines" not in found["disk"]
    itself = planned(capsys, tmp_path / "run", search={"strategy": "random", "evaluations": 8, "baseline": "random"})
    assert itself["time"]["baselines"] == []  # the search is random itself


@needs_small
def test_baselines_take_time_and_disk_too(capsys: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"baseline": f"timm:{SMALL}", "search": {**SETTINGS["search"], "baseline": "random"}}
    found = planned(capsys, tmp_path / "run", **settings)
    beside, trained = found["time"]["baselines"]
    assert beside == {"name": "random search beside", **found["time"]["search"]}
    assert (trained["name"], trained["steps"]) == (f"timm:{SMALL}", found["time"]["train"]["steps"])
    assert trained["seconds"] == pytest.approx(trained["steps"] * trained["seconds_per_step"])
    assert trained["seconds_per_step"] > 0
    without = planned(capsys, tmp_path / "run")["disk"]
    params = sum(p.numel() for p in timm.create_model(SMALL, num_classes=10, in_chans=1).parameters())
    assert found["disk"]["baselines"] == 3 * 3 * 4 * params  # weights and two moments, of three checkpoints
    assert found["disk"]["journal"] == 2 * without["journal"]
    assert found["disk"]["total"] == without["total"] + without["journal"] + found["disk"]["baselines"]


@needs_small
def test_baselines_have_lines_of_their_own(capsys: Any, tmp_path: Path) -> None:
    assert main([*words("plan", tmp_path / "run", baseline=f"timm:{SMALL}"), *FAST]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"timm:{SMALL} ")]
    assert "16 steps of" in line


def test_a_finished_run_is_not_touched(finished: Path, capsys: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    planned(capsys, finished)
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_a_budget_that_nothing_fits_is_refused(capsys: Any, tmp_path: Path) -> None:
    message = refused(capsys, [*words("plan", tmp_path / "run", max_params="1K"), *FAST])
    assert "no architecture fits params <= 1K" in message


def test_what_the_run_would_refuse_is_refused_now(capsys: Any, tmp_path: Path) -> None:
    message = refused(capsys, [*words("plan", tmp_path / "run", search={"strategy": "magic"}), *FAST])
    assert "unknown strategy 'magic'" in message
    message = refused(capsys, [*words("plan", tmp_path / "run", baseline="timm:vit_tiny_patch16_224"), *FAST])
    assert "timm:vit_tiny_patch16_224 does not take images of 8 px" in message
    assert "nothing was profiled" in refused(capsys, [*words("plan", tmp_path / "run", max_latency="1ms"), *FAST])


def test_a_narrow_budget_is_warned_of() -> None:
    smallest = tiny.MICRO.cost(tiny.MICRO.root.smallest()).params
    found = survey_space(tiny.MICRO, Budget(max_params=smallest), draws=100, seed=0)
    assert found.share.fitting == 0
    assert found.example == tiny.MICRO.root.smallest().to_dict()
    assert [warning.split(":")[0] for warning in warnings_of(found, {"total": 2, "free": 1})] == [
        "the disk has too little room",
        "none of 100 random architectures fits",
    ]


def test_the_supernet_takes_the_disk_that_was_said(tmp_path: Path) -> None:
    needed = disk_needed(tiny.MICRO, Recipe(), 100, tmp_path / "not" / "there", tiny.MICRO.root.smallest())
    save_supernet(Supernet(tiny.MICRO), tmp_path / "supernet")
    size = sum(path.stat().st_size for path in (tmp_path / "supernet").iterdir())
    assert needed["supernet"] == pytest.approx(size, rel=0.1)
    assert needed["checkpoints"] == 9 * needed["supernet"]  # three of weights and two moments
    assert needed["free"] > 0
    sgd = disk_needed(tiny.MICRO, Recipe(optimizer="sgd", ema=0.9), 100, tmp_path, tiny.MICRO.root.smallest())
    assert sgd["checkpoints"] == 9 * needed["supernet"]


def test_the_plan_from_a_pretrained_net_has_all_its_stages(capsys: Any, source: Path) -> None:
    command = ["plan", "--from", str(source), "--data", "digits", "--max-macs", "60%", "--front", "2", *FAST]
    command += ["--train.iterations", "80", "--train.batch_size", "64", "--train.augment.crop", "none"]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert [time[stage]["steps"] for stage in ("full", "train", "retrain")] == [40, 80, 80 * 2 * 3]
    assert time["search"]["candidates"] > 100
    weights = 4 * load_model(source).get_parameter("head.fc.weight").numel()
    for stage in ("full", "train", "retrain"):
        assert time[stage]["seconds"] > 0
        assert time[stage]["memory_bytes"] > weights
    assert time["teacher"] is None
    assert main([*command, "--no-training", "--finish", "finetune"]) == 0
    text = capsys.readouterr().out
    assert "training of the winner" in text
    assert "supernet training" not in text


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_plan_of_hours_names_shorter_ways(has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "computes_in_bf16", lambda: has_bf16)
    space, none = get_space("timm:deit_tiny_patch16_224"), StageTime(0, 0.0)
    supernet = StageTime(340, 76.0)
    times = StageTimes(supernet, search=none, retrain=none, baselines=[], device="cpu", note="", full=none)
    (warning,) = shorter_ways(PlanCommand(from_="timm:deit_tiny_patch16_224", front=5), space, times)
    for expected in ("takes hours on cpu", "leave --front 5 out", "--img-size 112", "--no-training"):
        assert expected in warning
    assert ("--train.precision bf16" in warning) == has_bf16
    tiny_images = space.with_options(img_size=96)
    assert "--img-size" not in next(shorter_ways(PlanCommand(from_="timm:x"), tiny_images, times))  # 3 patches a side
    assert not list(shorter_ways(PlanCommand(from_="timm:x", no_training=True), space, times))
    assert not list(shorter_ways(PlanCommand(), space, replace(times, train=none)))


def test_a_winner_out_of_a_supernet_is_trained_once(tmp_path: Path) -> None:
    save_supernet(Supernet(tiny.MICRO), tmp_path / "supernet")
    assert finish_trainings(PlanCommand(from_=str(tmp_path), front=2)) == 3
    assert finish_trainings(PlanCommand(from_="autoformer-micro:weights.pth")) == 1
    assert finish_trainings(PlanCommand(from_="timm:deit_tiny_patch16_224:weights.safetensors", front=2)) == 6
    assert finish_trainings(PlanCommand(from_=str(tmp_path), finish="none")) == 0


def test_the_plan_counts_the_fine_tuning_of_a_larger_teacher(capsys: Any, source: Path) -> None:
    command = ["plan", "--from", str(source), "--data", "digits", "--img-size", "16", "--max-macs", "60%", *FAST]
    command += ["--train.iterations", "40", "--train.batch_size", "16", "--train.teacher", "timm:test_vit"]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert (time["teacher"]["steps"], time["full"]["steps"]) == (20, 20)
    assert time["teacher"]["seconds"] > 0
