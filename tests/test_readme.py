"""The README's code runs as it stands there, but for fewer epochs and candidates."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import nasformer
from small_run import command_for

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands_on(page: Path) -> list[str]:
    """The command lines of ours: typed after a dollar sign, or in the middle of a sentence."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    typed = re.findall(r"^\$ (nasformer [a-z]+.*)$", blocks, re.MULTILINE)
    return typed + [line.replace("\n", " ") for line in re.findall(r"`(nasformer [a-z]+[^`]*)`", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_in_the_docs_is_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nasformer.cli.main import parse

    monkeypatch.chdir(ROOT)
    for line in commands_on(page):
        _, command, *words = shlex.split(re.sub(r" \.\.\.|\s#.*", "", line).replace("[NAME]", "NAME"))
        some = ["recipes/digits.yaml" if word in ("R.yaml", "RECIPE.yaml") else word for word in words]
        parse(command, some)  # raises what the user would be told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_in_the_docs_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert target.startswith("http") or found.exists(), target
        heads = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads], (
            target
        )


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
    from nasformer.cli.main import parse

    options, _ = parse(command_for(recipe), ["--config", str(recipe)])
    assert options.space is None or nasformer.get_space(options.space).root.cardinality > 1
    assert getattr(options, "proxy", None) or options.train.total_steps(steps_per_epoch=1) > 0
    if command_for(recipe) == "run":  # then it serves each step of the run as well
        train, _ = parse("train", ["--config", str(recipe), "--data", "images", "--out", "runs/one"])
        assert (train.space, train.train, train.data) == (options.space, options.train, "images")
        search, _ = parse("search", [f"--config={recipe}", "--max-params", "9M"])
        assert (search.space, search.search, search.max_macs) == (options.space, options.search, options.max_macs)
        assert search.max_params == "9M"
