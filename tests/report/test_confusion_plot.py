"""An evaluation as files, and the picture of which classes are taken for which."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nasformer.cli.main import main
from nasformer.report.plots import NAMED, NUMBERED, confusion_figure, write_confusion
from nasformer.train.evaluate import Confusion
from nasformer.utils.files import read_json


def confusion(classes: int) -> Confusion:
    counts = torch.diag(torch.full((classes,), 50))
    counts[0, 1], counts[classes - 1] = 7, 0
    return Confusion(counts, 1.0, [f"class ${number}" for number in range(classes)])


@pytest.mark.parametrize("classes", [2, NUMBERED, NUMBERED + 1, NAMED, NAMED + 1, 200])
def test_names_and_numbers_where_there_is_room(classes: int) -> None:
    figure = confusion_figure(confusion(classes))
    axes = figure.axes[0]
    assert len(axes.texts) == (classes if classes <= NUMBERED else 0)  # one mistake, and one class without images
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ([rf"class \${number}" for number in range(classes)] if classes <= NAMED else [])
    assert max(figure.get_size_inches()) <= 10


def test_the_files_hold_all(tmp_path: Path) -> None:
    found = confusion(4)
    write_confusion(found, tmp_path / "a", split="test")
    write_confusion(found, tmp_path / "b", split="test")
    names = ["confusion.png", "confusion.svg", "evaluation.html", "evaluation.json", "per_class.csv"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    page = (tmp_path / "a" / "evaluation.html").read_text(encoding="utf-8")
    assert "<b>95.5%</b><span>right, 95 % interval 91.1 to 97.8 %</span>" in page
    assert '<td data-label="accuracy">87.7%</td>' in page
    content = read_json(tmp_path / "a" / "evaluation.json")
    assert content["confusion"] == found.counts.tolist()
    assert (content["split"], content["accuracy"], content["top5"]) == ("test", 150 / 157, 1.0)
    assert content["per_class"][0]["mistaken_for"] == "class $1"
    with open(tmp_path / "a" / "per_class.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["accuracy"] for row in rows] == [str(50 / 57), "1.0", "1.0", ""]
    assert (tmp_path / "a" / "confusion.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_the_command_writes_them_and_names_the_worst_classes(finished: Path, tmp_path: Path, capsys: Any) -> None:
    capsys.readouterr()
    argv = ["evaluate", str(finished / "model"), "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    scores, balanced, worst = capsys.readouterr().out.splitlines()
    content = read_json(tmp_path / "out" / "evaluation.json")
    assert scores == f"test: top-1 {content['accuracy']:.2%}, top-5 {content['top5']:.2%}"
    assert balanced.startswith(f"balanced accuracy {content['balanced_accuracy']:.2%}, macro-F1 ")
    assert worst.startswith("worst: ")
    assert worst.count("%") == 3
    assert sum(map(sum, content["confusion"])) == content["images"] == 360
    assert content["classes"] == [str(number) for number in range(10)]
    assert main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    lowest = sorted(one["accuracy"] for one in content["per_class"])[:3]
    assert [one["accuracy"] for one in told["worst"]] == lowest
