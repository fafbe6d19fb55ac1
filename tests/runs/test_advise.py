"""Advice before a run: by the images and by what was measured."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from PIL import Image

import pages
from nasformer.cli.main import main
from nasformer.results.verdict import Evidence, Gain
from nasformer.runs import advise as module
from nasformer.runs.advise import ImageFacts, advise, nearest
from nasformer.runs.options import AdviseCommand


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for split, count in {"train": 6, "test": 2}.items():
        for name in ("cat", "dog"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (90, 80 + index), (index, 0, 255)).save(folder / f"{index}.jpg")
    return tmp_path / "photos"


def test_photos_start_from_a_pretrained_net(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--data", str(photos), "--max-macs", "35%"]) == 0
    said = capsys.readouterr().out
    assert "Start from a pretrained net" in said
    assert "Measured on Flowers-102" in said
    assert "may not hold for so few" in said  # of twelve images
    assert "cut, 35 % of the MACs" in said  # the measurement at that share, and no other
    assert "cut, 50 % of the MACs" not in said
    assert "[pretrained_cut-h200-deit-flowers]" in said
    assert f"next: nasformer run --from timm:deit_tiny_patch16_224 --data {photos} --max-macs 35%" in said


@pytest.mark.parametrize(("macs_a_second", "is_long"), [(1e5, True), (1e15, False)])
def test_shorter_ways_are_named_where_training_takes_hours(
    macs_a_second: float, is_long: bool, monkeypatch: pytest.MonkeyPatch, photos: Path
) -> None:
    monkeypatch.setattr(module, "training_speed", lambda space, img_size: macs_a_second)
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    said = " ".join(advise(AdviseCommand(data=str(photos), max_macs="35%")).sentences)
    assert ("--img-size 112 for about a quarter of it" in said) == is_long


def test_small_images_are_trained_from_scratch_and_no_gain_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = Evidence("supernet", "A", "D", 1000, 32, "small", "a.json", over_random=Gain(0.1, 0.7, 3))
    monkeypatch.setattr(module, "load_evidence", lambda: [weak])
    advice = advise(AdviseCommand(data="digits"))
    assert (advice.road, advice.pays) == ("supernet", False)
    assert any("No search was shown to pay there" in line for line in advice.sentences)
    assert any("--baseline resnet18" in command for command in advice.commands)


def test_a_net_that_keeps_the_limit_is_taken_as_it_is(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--data", str(photos), "--max-params", "20M"]) == 0
    said = capsys.readouterr().out
    assert "Take timm's deit_tiny_patch16_224 as it is: with 5.52M parameters" in said
    assert f"next: nasformer finetune timm:deit_tiny_patch16_224 --data {photos}" in said


def test_where_no_cut_is_so_small_nets_are_trained_from_scratch(
    monkeypatch: pytest.MonkeyPatch, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "image_facts", lambda command: ImageFacts(45_000, 100, 32, 3))
    assert main(["advise", "--data", str(photos), "--max-macs", "20M"]) == 0
    said = capsys.readouterr().out
    assert "No net that can be cut out of timm's deit_tiny_patch16_224 keeps your limits" in said
    assert "from scratch" in said
    assert "next: nasformer run --space 'autoformer-micro[" in said


def test_a_latency_that_no_net_has_is_said(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--data", str(photos), "--max-latency", "1us", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert (advice["road"], advice["pays"], advice["commands"]) == ("none", False, [])
    assert all("the smallest takes" in line for line in advice["sentences"][:2])
    assert "Ease the limit" in advice["sentences"][2]


def test_a_set_of_another_size_is_named() -> None:
    known = [Evidence("pretrained", "A", "S", 1_000, 224, "50 % of the MACs", "r", over_random=Gain(2.0, 0.5, 3))]
    assert list(module.warnings_for(ImageFacts(1_500, 10, 224, 3), known, True)) == []
    (far,) = module.warnings_for(ImageFacts(50_000, 10, 224, 3), known, True)
    assert "No set nearer to yours in size (50,000 training images) was measured" in far


def test_a_search_pays_where_all_rivals_are_beaten_beyond_chance() -> None:
    def measured(*gains: Gain | None) -> bool:
        return module.is_shown(Evidence("supernet", "A", "S", 1_000, 32, "b", "r", *gains))

    assert measured(Gain(2.0, 0.5, 3), None)
    assert not measured(Gain(2.0, 0.5, 3), Gain(-1.0, 0.5, 3))
    assert not measured(Gain(2.0, 0.0, 1))


def test_commands_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--data", "digits", "--max-params", "120K", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert advice["images"] == {"train": 1293, "classes": 10, "img_size": 8, "in_chans": 1}
    for command in advice["commands"]:
        _, options = pages.parse(shlex.split(command)[1:])
        assert (options.data, options.max_params) == ("digits", "120K")


def test_the_set_of_nearest_size_counts() -> None:
    records = [Evidence("supernet", "A", name, count, 32, "b", "r") for name, count in {"S": 500, "L": 50_000}.items()]
    assert [item.data for item in nearest(records, ImageFacts(4000, 10, 32, 3))] == ["S"]
    assert [item.data for item in nearest(records, ImageFacts(9000, 10, 32, 3))] == ["L"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say which images"),
        (["--data", "no/folder"], "no/folder"),
        (["--data", "digits", "--max-params", "6mm"], "6mm"),
    ],
)
def test_what_cannot_work_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *words]) == 2
    assert message in capsys.readouterr().err
