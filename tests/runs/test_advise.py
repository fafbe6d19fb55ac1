"""Advice before a run: by the images and by what was measured."""

from __future__ import annotations

import json
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
    assert "expect little of any training" in said  # of twelve images
    assert f"next: nasformer run --from timm:deit_tiny_patch16_224 --data {photos} --max-macs 35%" in said


def test_small_images_are_trained_from_scratch_and_no_gain_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = Evidence("supernet", "A", "D", 1000, 32, "small", "a.json", over_random=Gain(0.1, 0.7, 3))
    monkeypatch.setattr(module, "load_evidence", lambda: [weak])
    advice = advise(AdviseCommand(data="digits"))
    assert (advice.road, advice.pays) == ("supernet", False)
    assert any("No search was shown to pay there" in line for line in advice.sentences)
    assert any("--baseline resnet18" in command for command in advice.commands)


def test_commands_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--data", "digits", "--max-params", "120K", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert advice["images"] == {"train": 1293, "classes": 10, "img_size": 8, "in_chans": 1}
    for command in advice["commands"]:
        _, options = pages.parse(command.split()[1:])
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
