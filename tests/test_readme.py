"""README, documentation and recipes: commands are understood, links lead somewhere, tutorials run."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image

import nasformer
import pages
from nasformer.runs.base import holds_out_others, training_images
from pages import PAGES, RECIPES, ROOT
from small_run import command_for
from test_architecture import ORDER

IDS = {"ids": lambda path: path.stem}
PLUGIN = ROOT / "examples" / "plugin" / "README.md"
PLACEHOLDERS = {"R.yaml": "recipes/digits.yaml", "RECIPE.yaml": "recipes/digits.yaml", "[NAME]": "NAME", "...": ""}


@pytest.mark.parametrize("page", PAGES, **IDS)
def test_every_command_in_the_docs_is_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for line in pages.commands_on(page):
        if page != PLUGIN and "--import" not in line:  # commands with options of a plugin run in test_examples.py
            words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line)]
            pages.parse([word for word in words[1:] if word])


@pytest.mark.parametrize("page", PAGES, **IDS)
def test_every_link_in_the_docs_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert target.startswith("http") or linked.exists(), target
        heads = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        anchors = [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]
        assert not anchor or anchor in anchors, target


@pytest.mark.parametrize("page", PAGES, **IDS)
def test_python_in_the_docs_uses_what_there_is(page: Path) -> None:
    for language, block in pages.blocks(page):
        for node in ast.walk(ast.parse(block)) if language == "python" else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nasformer"):
                module = __import__(node.module or "", fromlist=["_"])
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "nasformer":
                assert hasattr(nasformer, node.attr), ast.unparse(node)


def test_api_page_has_the_public_api() -> None:
    named = re.findall(r"^::: nasformer\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(name for name in nasformer.__all__ if name != "__version__")


def test_architecture_page_lists_the_packages_in_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("\n## Packages\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)`", " ".join(rows))) == ORDER


def test_every_file_that_is_named_exists() -> None:
    texts = [*PAGES, *RECIPES, ROOT / "CHANGELOG.md", *sorted((ROOT / "benchmarks").glob("*.py"))]
    for path in texts:
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"\b(?:recipes|benchmarks|examples|docs|src/nasformer)/[\w/.-]+\.(?:yaml|py|md|ipynb)", text)
        named += [f"recipes/{name}.yaml" for name in re.findall(r"--config ([a-z][\w-]*)(?= )", text)]
        named += [f"src/nasformer/{name}" for name in re.findall(rf"`((?:{'|'.join(ORDER)})/(?:[a-z_/]+\.py)?)`", text)]
        missing = [name for name in named if not (ROOT / name).exists() and not (path.parent / name).exists()]
        assert missing == [], path.name


def test_every_option_of_a_benchmark_in_the_docs_exists() -> None:
    for page in PAGES:
        lines = [line for language, block in pages.blocks(page) if language == "console" for line in pages.typed(block)]
        for line in (line for line in lines if line.startswith("python benchmarks/")):
            _, script, *words = shlex.split(line)
            source = (ROOT / script).read_text(encoding="utf-8")
            passed_on = {"--config", "--data", "--out", "--train.batch_size", "--train.lr"} & set(words)
            known = all(f'"{word}"' in source or word in passed_on for word in words if word.startswith("--"))
            assert known or "parse_known_args" in source, line


def test_the_first_screen_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = next(block for language, block in pages.shortened(ROOT / "README.md") if language == "python")
    assert len(code.splitlines()) <= 18
    exec(compile(code, "README.md", "exec"), {})
    model = nasformer.load_model(tmp_path / "my-model")
    assert nasformer.evaluate(model, nasformer.load_data("digits"))["accuracy"] > 0.6  # in whole: `make examples`


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of photos as the tutorial has it: light cats and dark dogs."""
    for name, shade in (("cat", 200), ("dog", 60)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(1, 13):
            colour = (shade, shade - number, number)
            Image.new("RGB", (20, 20 + number), colour).save(tmp_path / "photos" / name / f"{number}.jpg")
    return tmp_path


@pytest.mark.slow
def test_tutorial_of_a_first_search_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages.run_page(ROOT / "docs" / "tutorials" / "first-search.md")
    assert (tmp_path / "runs" / "compared" / "compare.html").exists()


def test_examples_that_run_in_whole_name_what_pages_write() -> None:
    for name, models in pages.LEAST_ACCURACY.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert all(folder.removesuffix("/model") in text for folder in models), name


def test_python_of_the_tutorial_on_pretrained_nets_runs() -> None:
    """Its commands would download weights."""
    code = [block for language, block in pages.blocks(ROOT / "docs/tutorials/pretrained.md") if language == "python"]
    exec(compile("".join(code), "pretrained.md", "exec"), {})


SLOW_PAGES = ("docs/latency.md", "docs/proxies.md")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW_PAGES else name for name in pages.BEFORE]
)
def test_python_of_reference_runs(name: str, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    pages.run_python(ROOT / name)


def test_all_python_of_the_docs_runs_somewhere() -> None:
    run = {*pages.BEFORE, *pages.LEAST_ACCURACY, "examples/plugin/README.md"}
    written = {str(page.relative_to(ROOT)) for page in PAGES if any(kind == "python" for kind, _ in pages.blocks(page))}
    assert written <= run | {str(page.relative_to(ROOT)) for page in pages.TUTORIALS}


@pytest.mark.slow
def test_tutorial_of_photos_runs(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    monkeypatch.setattr(sys, "path", [*sys.path])
    pages.run_page(ROOT / "docs" / "tutorials" / "photos.md")
    sys.modules.pop("model")  # the exported one
    assert (photos / "runs" / "evaluation" / "confusion.png").exists()


SMALLER = {
    "timm:deit_tiny_patch16_224": "net",  # a small one, which needs no download
    "PHOTOS": "photos",
    "photo.jpg": "photos/cat/1.jpg",
    "IMAGENET": "photos",
    "--max-latency 20ms --out runs/photos": "--max-latency 1s --search.population 4 --search.generations 1 "
    "--train.iterations 4 --out runs/photos",
    "--front 5": "--front 2 --search.population 4 --search.generations 1 --train.iterations 4",
    "--no-training": "--no-training --search.population 4 --search.generations 1",
    "plan --config photos-small": f"plan --config photos-small {pages.SMALL} --steps 1 --draws 20",
    "run --config photos-small": f"run --config photos-small {pages.SMALL} {pages.RUN}",
    "--max-latency 20ms": "--max-latency 1s",
    "--search.strategy random": "--search.strategy random --search.evaluations 2",
    "--config tf-tas-imagenet": f"--config tf-tas-imagenet {pages.QUICK} --train.batch-size 4 --holdout 4",
}


@pytest.mark.slow
def test_every_command_of_the_first_page_runs(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on digits run as they are in `make examples`."""
    monkeypatch.chdir(photos)
    options = {"img_size": 16, "patch_size": 4, "num_classes": 2}
    space = nasformer.get_space("timm:vit_tiny_patch16_224[embed_dim=48]", **options)
    nasformer.save_model(space.build(space.arch("largest")), "net", mean=(0.5,) * 3, std=(0.5,) * 3)
    for _, block in pages.blocks(ROOT / "README.md"):
        for line in pages.typed(block):
            if line.startswith("nasformer ") and "digits" not in line:
                for old, new in SMALLER.items():
                    line = line.replace(old, new)
                pages.run_line(line)
    for name in ("photos", "quick", "mine"):
        assert (photos / "runs" / name / "report.html").exists()
    assert nasformer.RunResult.load(photos / "runs" / "trained" / "result.json").winner["test_accuracy"] >= 0


@pytest.mark.parametrize("recipe", RECIPES, **IDS)
def test_every_recipe_is_read(recipe: Path) -> None:
    _, options = pages.parse([command_for(recipe), "--config", str(recipe)])
    assert options.space is None or nasformer.get_space(options.space).root.cardinality > 1
    assert getattr(options, "proxy", None) or options.train.total_steps(steps_per_epoch=1) > 0
    if command_for(recipe) == "run":  # then it serves each step of the run as well
        _, train = pages.parse(["train", "--config", str(recipe), "--data", "images", "--out", "runs/one"])
        assert (train.space, train.train, train.data) == (options.space, options.train, "images")
        _, search = pages.parse(["search", f"--config={recipe}", "--max-params", "9M"])
        assert (search.space, search.search, search.max_macs) == (options.space, options.search, options.max_macs)
        assert search.max_params == "9M"


@pytest.mark.parametrize("recipe", RECIPES, **IDS)
def test_commands_in_the_comments_of_a_recipe_fit_together(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search is refused whose hold-out is not that of the supernet's training; so must none be written here."""
    monkeypatch.chdir(ROOT)
    trained = {}
    for line in pages.recipe_commands(recipe):
        command, options = pages.parse(shlex.split(line)[1:])
        if command in ("run", "train"):
            trained[options.out] = training_images(options)
        elif command == "search" and not options.proxy:
            folder = str(Path(options.supernet).parent) if options.supernet else options.out
            assert not holds_out_others(options, trained[folder]), line
        elif command == "finetune" and options.holdout:
            assert not holds_out_others(options, trained.get(options.run, {})), line
