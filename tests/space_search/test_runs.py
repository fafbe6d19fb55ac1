"""The evolution in a run folder: what it holds, and that a killed one ends as if nothing had happened."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tiny
from nasformer.cli.main import find_command, main, make_parser
from nasformer.data.loaders import Batches
from nasformer.errors import UserError
from nasformer.models.registry import get_space
from nasformer.runs import base as runs, run as evolve_runs
from nasformer.runs.options import EvolveCommand
from nasformer.search.journal import Journal, read_journal
from nasformer.space_search import measure_quality
from nasformer.supernet.storage import load_supernet
from nasformer.train import checkpoint
from nasformer.utils.files import read_json
from small_run import contents, words

TRAIN = {"epochs": 1, "batch_size": 256, "warmup_epochs": 0.5, "log_epochs": 0.25, "checkpoint_seconds": 0.0}
TRAIN |= {"lr": 3e-3, "augment": {"crop": "none", "hflip": 0.0}}
EVOLVE: dict[str, Any] = {"samples": 10, "top": 2, "min_samples": 2, "sigma": 0.0, "tau": 1e-6}
SPACE = "autoformer-micro[embed_dim=16,24,32;blocks.depth=1,2;blocks.num_heads=1,2]"  # smaller still
SHARED_BY = ("evolve", "run", "train", "search")
BUDGET = {"space": SPACE, "min_params": "4K", "max_params": "40K"}


def evolve_words(folder: Path, evolve: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    return words("evolve", folder, train=TRAIN, evolve=EVOLVE | (evolve or {}), **BUDGET, **changes)


@pytest.fixture(scope="module")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three spaces; tests read it only."""
    folder = tmp_path_factory.mktemp("evolved") / "run"
    assert main(evolve_words(folder)) == 0
    return folder


def ended(run: Path) -> dict[str, bytes]:
    """All files, but for hidden ones such as the lock."""
    return {name: content for name, content in contents(run).items() if not Path(name).name.startswith(".")}


def test_each_space_is_an_ordinary_run(evolved: Path) -> None:
    steps = read_json(evolved / "evolution.json")["steps"]
    assert len(steps) == 3
    for number, step in enumerate(steps):
        folder = evolved / "steps" / str(number)
        assert load_supernet(folder / "supernet").space.name == step["space"]
        assert read_json(folder / "config.json")["space"] == step["space"]
        settings, records = read_journal(folder / "search" / "journal.jsonl")
        assert (settings["strategy"], settings["space"], len(records)) == ("random", step["space"], 10)
        assert all(4_000 <= record["params"] <= 40_000 for record in records)
        errors = sorted(100 * (1 - record["accuracy"]) for record in records)
        assert step["errors"] == pytest.approx(errors, abs=1e-5)
        assert step["error"]["et"] == pytest.approx(measure_quality(errors, 2 / 10).et, abs=1e-5)
    assert read_json(evolved / "config.json")["space"] == SPACE


def test_each_space_is_what_became_of_the_last(evolved: Path) -> None:
    steps = read_json(evolved / "evolution.json")["steps"]
    assert len({step["space"] for step in steps}) == 3
    for before, after in pairwise(steps):
        following = {name: one["next"] for name, one in before["dimensions"].items()}
        assert following == {name: one["values"] for name, one in after["dimensions"].items()}
        assert get_space(before["space"]).with_choices(following).name == after["space"]
    assert all(one["shift"] == 0 and one["next"] == one["values"] for one in steps[2]["dimensions"].values())


def test_weights_are_carried_over(evolved: Path, tmp_path: Path) -> None:
    first, *others = read_json(evolved / "evolution.json")["steps"]
    assert first["carried"] is None
    assert all(step["carried"]["whole"] > 0 for step in others)
    assert main(evolve_words(tmp_path / "run", {"carry": False, "steps": 1})) == 0
    fresh = read_json(tmp_path / "run" / "evolution.json")["steps"][1]
    assert fresh["carried"] is None
    assert fresh["space"] == others[0]["space"]
    weights = "steps/1/supernet/supernet.safetensors"
    assert contents(tmp_path / "run")[weights] != contents(evolved)[weights]


def test_later_spaces_may_be_trained_for_longer(tmp_path: Path) -> None:
    assert main(evolve_words(tmp_path / "run", {"steps": 1, "further_epochs": 2})) == 0
    steps = [read_json(tmp_path / "run" / "steps" / str(number) / "config.json") for number in range(2)]
    assert [step["train"]["epochs"] for step in steps] == [1, 2]
    lines = [(tmp_path / "run" / "steps" / n / "train" / "log.jsonl").read_text().splitlines() for n in "01"]
    assert [json.loads(each[-1])["epoch"] for each in lines] == [1, 2]


def test_done_again_it_changes_nothing(evolved: Path, capsys: Any) -> None:
    before = contents(evolved)
    capsys.readouterr()
    assert main([*evolve_words(evolved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == read_json(evolved / "evolution.json")
    assert contents(evolved) == before


def test_its_config_serves_other_commands_too(tmp_path: Path) -> None:
    _, _, path, *_ = evolve_words(tmp_path / "run")
    options = {name: make_parser(find_command(name)).parse(["--config", path]).options for name in SHARED_BY}
    assert options["evolve"].evolve.samples == 10
    assert {one.space for one in options.values()} == {SPACE}


class InterruptedCall:
    """A function that is interrupted at one of its calls, before or after its work."""

    def __init__(self, function: Any, calls: int, after: bool = False) -> None:
        self.function, self.left, self.after = function, calls, after

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return lambda *arguments, **options: self(owner, *arguments, **options)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if not self.left and not self.after:
            raise tiny.Interrupted
        result = self.function(*arguments, **options)
        if not self.left:
            raise tiny.Interrupted
        return result


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("place", "name", "calls", "after"),
    [
        (Batches, "train", 4, False),  # in the training of the first space
        pytest.param(checkpoint.Checkpoints, "save", 6, True, marks=SLOW),  # of the second, just after a checkpoint
        pytest.param(runs, "save_supernet", 2, False, marks=SLOW),  # behind it
        (Journal, "append", 2 * 11 + 5, True),  # while the third space is judged
        pytest.param(evolve_runs, "write_evolution", 1, False, marks=SLOW),  # between two spaces, the first not written
        (evolve_runs, "write_evolution", 2, True),  # and the second just written down
    ],
)
def test_interrupted_it_ends_as_if_undisturbed(
    place: Any, name: str, calls: int, after: bool, evolved: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(place, name, InterruptedCall(getattr(place, name), calls, after))
        with pytest.raises(tiny.Interrupted):
            main(evolve_words(run))
    assert ended(run) != ended(evolved)
    known = read_json(run / "evolution.json") if (run / "evolution.json").exists() else None
    assert main(evolve_words(run)) == 0
    found, expected = ended(run), ended(evolved)
    assert found["evolution.json"] == expected["evolution.json"]
    assert [one for one in expected if found.get(one) != expected[one]] == []
    assert known is None or known["steps"] == json.loads(expected["evolution.json"])["steps"][: len(known["steps"])]


def test_catching_up_takes_nothing_away(evolved: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """While a finished run is gone through again, all its steps can be read."""
    command = evolve_words(evolved)
    before = (evolved / "evolution.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(evolve_runs, "write_evolution", InterruptedCall(evolve_runs.write_evolution, 1, after=True))
        with pytest.raises(tiny.Interrupted):
            main(command)
    assert (evolved / "evolution.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"carry": False}, "steps/1/train/checkpoints was trained with start = "),
        ({"samples": 11}, "steps/0/search/journal.jsonl belongs to a search with other settings"),
        ({"step_of": {"embed_dim": 4}}, "steps/1/train/checkpoints was trained with space = autoformer-micro["),
    ],
)
def test_other_options_than_before_are_refused(
    options: dict[str, Any], message: str, evolved: Path, capsys: Any
) -> None:
    before = contents(evolved)
    assert main(evolve_words(evolved, options)) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert contents(evolved) == before


def test_a_budget_that_no_longer_fits(tmp_path: Path) -> None:
    """It is said before the training of a space that has no such archs."""
    command = EvolveCommand(space="autoformer-micro", patch_size=4, max_params="200K", out=str(tmp_path / "run"))
    with runs.open_run(command, "evolution") as run:
        wide = run.space.with_choices({"embed_dim": [320, 384]})
        with pytest.raises(UserError, match=r"step 1 of the evolution led to autoformer-micro.*no architecture fits"):
            evolve_runs.SpaceEvaluator(run, command).judge(wide, 1)
        with pytest.raises(UserError, match=r"^no architecture fits params <= 200K"):
            evolve_runs.SpaceEvaluator(run, command).judge(wide, 0)
    assert [path.name for path in (tmp_path / "run" / "steps" / "1").iterdir()] == ["config.json"]


def test_what_is_printed(evolved: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert main(evolve_words(evolved)) == 0
    lines = capsys.readouterr().out.splitlines()
    steps = read_json(evolved / "evolution.json")["steps"]
    for number, step in enumerate(steps):
        assert f"space {number}: {step['space']}" in lines
        assert any(line.startswith(f"  E-T error {step['error']['et']:.2f} %") for line in lines)
    assert sum("weights of the space before: " in line for line in lines) == 2
    for name in steps[0]["dimensions"]:
        assert sum(line.strip().startswith(name) for line in lines) == 3
    check_search_command(lines[-1].removeprefix("search the last space: "), evolved, capsys)


def check_search_command(text: str, evolved: Path, capsys: Any) -> None:
    """What the command says that one may type next searches the last space, within the budget."""
    program, command, *argv = shlex.split(text)
    assert (program, command) == ("nasformer", "search")
    out = evolved.parent / "searched"
    small = ["--search.population", "4", "--search.generations", "2", "--out", str(out), "--json"]
    capsys.readouterr()
    assert main(["search", *argv, *small]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["space"] == read_json(evolved / "evolution.json")["steps"][2]["space"]
    assert 4_000 <= found["winner"]["params"] <= 40_000
    settings, _ = read_journal(out / "search" / "journal.jsonl")
    assert settings["options"]["mutation"] == "paper"


def test_nothing_moves(tmp_path: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert main(evolve_words(tmp_path / "run", {"tau": 1000.0})) == 0
    assert "nothing shifted in step 0: the evolution ends here, 2 short" in capsys.readouterr().out
    assert len(read_json(tmp_path / "run" / "evolution.json")["steps"]) == 1
    assert [path.name for path in (tmp_path / "run" / "steps").iterdir()] == ["0"]


@pytest.mark.slow
def test_windows_and_widths_of_s3(tmp_path: Path) -> None:
    """A step of a family of stages: its own limits hold, and the space that follows is trained and judged."""
    stages = "stage1.embed_dim=16,24;stage2.embed_dim=16,24;stage3.embed_dim=16,32;stage4.embed_dim=16,32"
    depths = ";".join(f"stage{number}.blocks.depth=1" for number in range(1, 5))
    options = {"steps": 1, "samples": 8, "top": 1, "min_samples": 1}
    argv = words(
        "evolve",
        tmp_path / "run",
        space=f"s3-micro[{stages};{depths}]",
        patch_size=1,
        max_params=None,
        train=TRAIN | {"sandwich": 1, "iterations": 2},
        evolve=EVOLVE | options,
    )
    assert main(argv) == 0
    first, second = read_json(tmp_path / "run" / "evolution.json")["steps"]
    limits = get_space("s3-micro", img_size=8, patch_size=1).limits()
    window = first["dimensions"]["stage1.blocks.window"]
    assert limits["stage1.blocks.window"] == (1, 8)
    assert max(window["next"]) <= 8
    assert first["dimensions"]["stage4.blocks.window"]["notice"] == "left alone: a single value"
    assert second["space"] != first["space"]
    assert load_supernet(tmp_path / "run" / "steps" / "1" / "supernet").space.name == second["space"]
