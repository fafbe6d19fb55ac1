"""A command writes only into a folder that is empty or its own, and is refused before it has written anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from nasformer.utils.files import read_json, write_json
from report.fake_evolution import write_evolution
from small_run import contents, refused

MICRO = "--space autoformer-micro --patch-size 4 --device cpu"
SEARCH = "search --holdout 0.2 --max-params 120K --search.population 4 --search.generations 2 --device cpu"
PROXY = f"search {MICRO} --proxy params --search.strategy random --search.evaluations 2"
ARCH = "--arch smallest --train.epochs 1 --export false"
RETRAIN, FINETUNE = f"retrain {MICRO} {ARCH}", f"finetune YARD/run {ARCH} --device cpu --holdout 0.2"
WRITERS = {
    "train": f"train {MICRO} --out TO",
    "search": f"{SEARCH} --supernet YARD/run/supernet --out TO",
    "search by proxy": f"{PROXY} --out TO",
    "run": f"run {MICRO} --train.epochs 2 --seed 7 --out TO",
    "evolve": f"evolve {MICRO} --out TO",
    "retrain": f"{RETRAIN} --out TO",
    "finetune": f"{FINETUNE} --out TO",
    "extract": "extract YARD/run --to TO",
    "export": "export YARD/run --to TO",
    "evaluate": "evaluate YARD/model --out TO",
    "compare": "compare YARD/run YARD/retrained --out TO",
    "patterns": "patterns YARD/run YARD/run --out TO",
    "rank": "rank --table YARD/table.json --target top1 --out TO",
}
OWN = {("train", "run"), ("search", "run"), ("search by proxy", "free"), ("retrain", "retrained")}
OWN |= {("finetune", "retrained"), ("extract", "model"), ("export", "model"), ("evolve", "evolved")}
"""What may be written over by the same kind of command: with other settings it is refused as well, see below."""


@pytest.fixture(scope="module")
def yard(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kind that there is, and somebody's else."""
    yard = tmp_path_factory.mktemp("yard")
    run = shutil.copytree(finished, yard / "run")
    shutil.copytree(run / "model", yard / "model")
    for name, kind in {"retrained": "model", "free": "training-free"}.items():
        shutil.copytree(run, yard / name, ignore=shutil.ignore_patterns("supernet", "train", "plots"))
        write_json(yard / name / "config.json", read_json(run / "config.json") | {"kind": kind})
    write_evolution(yard / "evolved")
    (yard / "photos" / "cats").mkdir(parents=True)
    (yard / "photos" / "cats" / "tom.png").write_bytes(b"a picture")
    write_json(yard / "foreign" / "config.json", {"name": "another program"})
    (yard / "file").write_text("notes")
    write_json(yard / "table.json", {"space": "autoformer-micro", "rows": []})
    return yard


def words(command: str, yard: Path, to: str) -> list[str]:
    return command.replace("TO", f"{yard}/{to}").replace("YARD", str(yard)).split()


@pytest.mark.parametrize("name", WRITERS)
def test_folders_of_others_are_left_alone(name: str, yard: Path, capsys: Any) -> None:
    before = contents(yard)
    for to in ("run", "retrained", "free", "evolved", "model", "photos", "foreign", "file"):
        if (name, to) not in OWN:
            message = refused(capsys, words(WRITERS[name], yard, to))
            assert str(yard / to) in message
            assert contents(yard) == before


@pytest.mark.parametrize(
    "command",
    [
        f"{SEARCH} --out YARD/run --seed 9",
        "run --config YARD/../run.yaml --out YARD/run --train.lr 0.1",
        f"train {MICRO} --out YARD/run --train.epochs 9",
        f"{SEARCH} --out YARD/run --search.parents 3",
        "profile --space autoformer-micro --out YARD/run/result.json --device cpu",
        "attention YARD/model YARD/photos/cats/tom.png --block 1 --out YARD/run/config.json",
    ],
    ids=["seed", "recipe", "epochs", "parents", "profile", "attention"],
)
def test_other_settings_are_refused_before_anything_is_written(command: str, yard: Path, capsys: Any) -> None:
    (yard.parent / "run.yaml").write_text("space: autoformer-micro\npatch_size: 4\nholdout: 0.2\nmax_params: 120K\n")
    before = contents(yard)
    refused(capsys, words(command, yard, ""))
    assert contents(yard) == before
