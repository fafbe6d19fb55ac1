"""Run folders for tests: a small run as a command line, what a folder holds, and what a refusal says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nasformer.cli.main import find_command, main, make_parser

SETTINGS: dict[str, Any] = {
    "space": "autoformer-micro",
    "patch_size": 4,
    "holdout": 0.2,
    "max_params": "120K",
    "model": {"drop_path_rate": 0.0},
    "train": {"epochs": 2, "batch_size": 128, "lr": 3e-3, "augment": {"crop": "none", "hflip": 0.0}},
    "search": {"population": 4, "generations": 2},
    "finish": "none",  # test_finish.py is about it
    "export": False,  # it takes longer than all the rest; test_shipping.py is about it
}


def words(command: str, folder: Path, **changes: Any) -> list[str]:
    """The command line of a command in a run folder, with the settings of a run in a file; JSON is YAML."""
    path = folder.parent / f"{command}.yaml"
    path.write_text(json.dumps(SETTINGS | changes))
    return [command, "--config", str(path), "--out", str(folder)]


_FIGURES: dict[str, dict[str, Any]] = {}


@contextmanager
def pictures(drawn: bool = True) -> Iterator[None]:
    """Within it reports have their figures, as they have outside of tests, or have none."""
    from nasformer.report import page, space_search

    with pytest.MonkeyPatch.context() as patch:
        for module in (page, space_search):
            all_of_them = _FIGURES.setdefault(module.__name__, module.FIGURES)
            patch.setattr(module, "FIGURES", all_of_them if drawn else {})
        yield


def parse(command: str, *words: str | Path) -> Any:
    """The options that the words of a command line mean."""
    return make_parser(find_command(command)).parse([str(word) for word in words]).options


def output(capsys: Any, *argv: str | Path) -> str:
    """What a command prints."""
    capsys.readouterr()
    assert main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def json_output(capsys: Any, *argv: str | Path) -> Any:
    """What a command prints as JSON: one line, without NaN or infinities, and nothing beside it."""
    (line,) = output(capsys, *argv, "--json").splitlines()
    return json.loads(line, parse_constant=refuse_constant)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def command_for(recipe: Path) -> str:
    """The command that takes a recipe; one that goes on from a run need not name a space."""
    name, text = recipe.stem, recipe.read_text(encoding="utf-8")
    if "finetune" in name or "transfer" in name:
        return "finetune"
    if "retrain" in name:
        return "retrain"
    if "\nevolve:" in text:
        return "evolve"
    return "search" if "\nproxy:" in text else "run" if "\nsearch:" in text else "train"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys: Any, argv: list[str]) -> str:
    """What a command that cannot be done says, on one line."""
    capsys.readouterr()
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nasformer: ")
    assert err.count("\n") == 1
    return err
