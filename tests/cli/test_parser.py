"""Command lines and config files as options, help, and completion in shells."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nasformer.cli.main import COMMANDS, find_command, make_parser
from nasformer.cli.parser import WIDTH, find_recipe, list_options, recipe_folder, summary
from small_run import output, parse, refused


def test_names_with_dashes_or_underscores_and_values_of_their_types() -> None:
    train, model = ["--train.lr", "1e-3", "--train.ema", "0"], ["--patch_size=4", "--model.qkv_bias", "false"]
    search = ["--search.objectives", "[accuracy,-params]", "--search.population", "7"]
    options = parse("run", "--max-params", "6M", *train, *model, *search)
    assert (options.max_params, options.patch_size, options.train.lr, options.train.ema) == ("6M", 4, 1e-3, 0)
    assert options.model == {"qkv_bias": False}
    assert options.search.objectives == ["accuracy", "-params"]
    assert options.search.options == {"population": 7}


def test_a_group_at_once_and_single_options_beside_it() -> None:
    options = parse("train", "--train", "{epochs: 3, augment: {hflip: 0}}", "--train.lr", "0.5")
    assert (options.train.epochs, options.train.augment.hflip, options.train.lr) == (3, 0, 0.5)


def test_config_files_in_turn_and_the_command_line_over_all(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("space: s3\nseed: 1\ntrain: {epochs: 3, lr: 1e-3}\nsearch: {population: 9}\n")
    second.write_text("seed: 2\ntrain:\n  epochs: 4\n")
    options = parse("train", "--seed", "5", "--config", first, "--config", second)
    assert (options.space, options.seed, options.train.epochs, options.train.lr) == ("s3", 5, 4, 1e-3)


def test_words_without_a_name() -> None:
    options = parse("predict", "runs/mine", "one.jpg", "two.jpg", "--top", "2")
    assert (options.model, options.images, options.top) == ("runs/mine", ["one.jpg", "two.jpg"], 2)
    assert parse("doctor", "--device", "cpu", "runs/mine").run == "runs/mine"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["doctor", "one", "two"], "nasformer doctor cannot read 'two'; see nasformer doctor --help"),
        (["run", "--spcae", "s3"], "nasformer run has no option --spcae; did you mean --space?"),
        (["train", "--train", "3"], "train is 3, expected options below it"),
        (["evaluate", "--split", "tset"], "--split is 'tset'; choose one of test, holdout, train"),
    ],
)
def test_what_cannot_be_read(argv: list[str], message: str, capsys: Any) -> None:
    assert message in refused(capsys, argv)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_main_options_and_all_options_on_request(name: str, capsys: Any) -> None:
    command = find_command(name)
    short, full = (output(capsys, name, option) for option in ("--help", "--help-all"))
    assert short.startswith(f"usage: nasformer {name} ")
    assert summary(command.options) in short
    assert len(short.splitlines()) <= 60
    parser = make_parser(command)
    for option in list_options(command.options):
        shown = option.name.upper() if option.name in parser.positional else f"  {option.flag}"
        assert shown in full
        assert option.name not in getattr(command.options, "main", ()) or shown in short
        assert option.help, f"{option.flag} has no help"
    example = getattr(command.options, "example", "")
    assert example.splitlines()[0] in short
    assert all(len(line) <= 120 for line in full.splitlines())


@pytest.mark.parametrize("name", ["run", "train", "search", "retrain", "finetune"])
def test_help_says_what_else_than_classes_can_be_learned(name: str, capsys: Any) -> None:
    assert "--task TASK" in output(capsys, name, "--help")


def test_the_overview_names_all_commands(capsys: Any) -> None:
    text = output(capsys, "--help")
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  ")] == list(COMMANDS)
    assert output(capsys) == output(capsys, "-h") == text


def complete(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word of a command line."""
    typed = " ".join(f"'{word}'" for word in words)
    program = f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _nasformer; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_in_bash(capsys: Any, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(output(capsys, "completion", "bash"))
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    assert complete(script, "nasformer", "") == list(COMMANDS)
    assert complete(script, "nasformer", "fine") == ["finetune"]
    assert complete(script, "nasformer", "run", "--max-p") == ["--max-params"]
    assert complete(script, "nasformer", "search", "--search.pop") == ["--search.population"]
    assert complete(script, "nasformer", "cost", "--help") == ["--help", "--help-all"]
    assert complete(script, "nasformer", "cost", "--epochs") == []
    assert complete(script, "nasformer", "evaluate", f"{tmp_path}/comp") == [str(script)]  # files


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_in_other_shells(shell: str, capsys: Any) -> None:
    script = output(capsys, "completion", shell)
    assert all(name in script for name in COMMANDS)
    assert "search.population" in script


def test_recipes_are_listed_and_printed(capsys: Any) -> None:
    recipes = json.loads(output(capsys, "recipes", "--json"))
    assert {"digits", "photos-small"} <= set(recipes)
    assert all(recipes.values())
    listed = output(capsys, "recipes").splitlines()
    assert [line.split()[0] for line in listed if not line.startswith("    ")] == list(recipes)
    assert all(about.endswith(".") and about.count(". ") <= 1 for about in recipes.values())  # a whole sentence
    assert max(map(len, listed)) <= WIDTH
    assert "space:" in output(capsys, "recipes", "digits")
    assert "did you mean digits?" in refused(capsys, ["recipes", "digts"])


def test_a_folder_does_not_hide_the_recipe_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits").mkdir()
    assert find_recipe("digits") == recipe_folder() / "digits.yaml"
