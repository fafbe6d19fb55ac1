"""The README's code runs as it stands there, but for fewer epochs and candidates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nasformer

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
def test_every_recipe_is_read(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nasformer.cli import parse

    text = recipe.read_text(encoding="utf-8")
    command = "search" if "proxy:" in text else "run" if "search:" in text else "train"
    options, _ = parse(command, ["--config", str(recipe)])
    assert options.space in nasformer.list_spaces()
    assert options.proxy if command == "search" else options.train.epochs > 0
