"""The README's code runs as it stands there, but for fewer epochs and candidates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nasformer
from runs import command_for

ROOT = Path(__file__).parents[1]


def test_the_first_screen_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code
    small = code[1].replace("epochs=60", "epochs=1")
    few = "options={'population': 4, 'generations': 2}"
    small = small.replace("supernet, data, budget=", f"supernet, data, {few}, budget=")
    assert few in small
    assert len(code[1].splitlines()) <= 18
    exec(compile(small, "README.md", "exec"), {})
    assert nasformer.load_model(tmp_path / "my-model").num_classes == 10


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_is_read(recipe: Path) -> None:
    from nasformer.cli import parse

    options, _ = parse(command_for(recipe), ["--config", str(recipe)])
    assert options.space is None or options.space in nasformer.list_spaces()
    assert getattr(options, "proxy", None) or options.train.total_steps(steps_per_epoch=1) > 0
    if command_for(recipe) == "run":  # then it serves each step of the run as well
        train, _ = parse("train", ["--config", str(recipe), "--data", "images", "--out", "runs/one"])
        assert (train.space, train.train, train.data) == (options.space, options.train, "images")
        search, _ = parse("search", [f"--config={recipe}", "--max-params", "9M"])
        assert (search.space, search.search, search.max_macs) == (options.space, options.search, options.max_macs)
        assert search.max_params == "9M"
