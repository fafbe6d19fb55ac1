"""Pages of the documentation: their commands and Python blocks, found, parsed and run.

`python tests/pages.py PAGE ...` runs tutorials from top to bottom in the current folder, with smaller numbers;
`python tests/pages.py --whole` the examples on digits as they are written, and checks how good their models are.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nasformer
from nasformer.cli.main import find_command, main, make_parser, split_imports

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/plugin/README.md")),
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if not page.is_symlink()),
    *TUTORIALS,
]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))

QUICK = "--train.epochs 1 --export false"
FEW = "--search.population 2 --search.generations 1"
RUN = f"{QUICK} {FEW} --finish none"
SMALL = "--space autoformer-micro --img-size 16 --patch-size 4"
SHORTER = {
    "README.md": {
        "patch_size=2": "patch_size=4",
        "epochs=60": "epochs=4",
        "lr=2e-3": "lr=5e-3",
        '"population": 20, "generations": 5': '"population": 4, "generations": 1',
    },
    "docs/tutorials/first-search.md": {
        "plan --config digits": "plan --config digits --steps 1 --draws 20",
        "run --config digits": f"run --config digits {RUN} --search.random_references 1",
        "search --config digits": f"search --config digits {FEW} --search.random_references 1",
        "retrain runs/smaller": f"retrain runs/smaller {QUICK}",
    },
    "docs/tutorials/photos.md": {
        "plan --config photos-small": f"plan --config photos-small {SMALL} --steps 1 --draws 20",
        "--space autoformer-tiny --img-size 64": f"{SMALL} --num-classes 2 --nets 3 --holdout 2 --rounds 2",
        "run --config photos-small": f"run --config photos-small {SMALL} {RUN}",
        "--max-latency 20ms": "--max-latency 1s --latency-profile $PROFILE",
        "finetune runs/photos": f"finetune runs/photos --space autoformer-micro {QUICK}",
        "--img-size 96": "--img-size 24",
    },
    "docs/architecture.md": {'nasformer.load_supernet("supernet-tiny.pth", space)': "nasformer.Supernet(space)"},
    "docs/attention.md": {'block="3.7"': 'block="2"'},
    "docs/export.md": {"arch={...}": 'arch="autoformer-t"'},
    "docs/latency.md": {"threads=1)": "threads=1, nets=3, holdout=2, rounds=2)"},
    "docs/proxies.md": {"max_params=6_300_000)": 'max_params=6_300_000), options={"evaluations": 2}'},
    "examples/plugin/README.md": {"run --space convmixer-micro": f"run --space convmixer-micro {RUN}"},
}
"""What is replaced in a page before it runs in a test, so that it takes seconds."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The code blocks of a page: language and text."""
    yield from re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def typed(block: str) -> list[str]:
    """The command lines in a block, each after a dollar sign, without their comments."""
    lines = block.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s#.*", "", line[2:]) for line in lines if line.startswith("$ ")]


def commands_on(page: Path) -> list[str]:
    """Command lines of ours on a page: typed in a block, or in the middle of a sentence."""
    text = page.read_text(encoding="utf-8")
    lines = [line for language, block in blocks(page) if language == "console" for line in typed(block)]
    quoted = [line.replace("\n", " ") for line in re.findall(r"`(nasformer [a-z]+[^`]*)`", text)]
    return [line for line in lines if line.startswith("nasformer ")] + quoted


def recipe_commands(recipe: Path) -> list[str]:
    """Command lines of ours in the comments of a recipe; under torchrun they are the same."""
    text = re.sub(r"\\\n#", " ", recipe.read_text(encoding="utf-8"))
    lines = re.findall(r"^#   (?:torchrun .* -m nasformer\.cli|nasformer) (.*)$", text, re.MULTILINE)
    return [f"nasformer {line}" for line in lines]


def parse(words: Sequence[str]) -> tuple[str, Any]:
    """The command and its options; raises what the user would be told."""
    name, *rest = split_imports(words)[1]
    return name, make_parser(find_command(name)).parse(rest).options


def shortened(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page with smaller numbers. Each replacement must be of use, so that none is left behind."""
    changes = SHORTER.get(str(page.relative_to(ROOT)), {})
    text = page.read_text(encoding="utf-8")
    assert all(old in text for old in changes), f"SHORTER has texts that {page.name} has not"
    shorter = []
    for language, block in blocks(page):
        for old, new in changes.items():
            block = block.replace(old, new)
        shorter.append((language, block))
    return shorter


def run_page(page: Path) -> None:
    """Runs the commands and the Python of a page in the current folder.

    A Python block that begins with the name of a file is written into that file, ahead of all else.
    """
    namespace: dict[str, Any] = {}
    steps = shortened(page)
    for language, block in steps:
        if named := file_of(language, block):
            with open(named, "a", encoding="utf-8") as file:
                file.write(block + "\n\n")
    for language, block in steps:
        if language == "console":
            for line in typed(block):
                run_line(line)
        elif language == "python" and not file_of(language, block):
            exec(compile(block, str(page), "exec"), namespace)


BEFORE = {
    "docs/architecture.md": """
import nasformer
from nasformer import Segment
from nasformer.layers.blocks import TransformerBlock
""",
    "docs/attention.md": """
import nasformer, torch
space = nasformer.get_space("autoformer-micro")
model, images = space.build(space.arch("smallest")), torch.rand(1, 3, 32, 32)
""",
    "docs/data.md": """
import nasformer
from PIL import Image
train = test = [(Image.new("RGB", (8, 8), (30 * number, 0, 0)), number % 2) for number in range(8)]
""",
    "docs/export.md": """
import nasformer, timm
space = nasformer.get_space("autoformer-micro", img_size=32, num_classes=5)
arch = space.sample(seed=0)
nasformer.save_model(space.build(arch), "my-model", mean=(0.5,) * 3, std=(0.5,) * 3)
""",
    "docs/latency.md": "",
    "docs/proxies.md": "",
}
"""Pages of reference, and what their Python takes for granted."""


def run_python(page: Path) -> dict[str, Any]:
    """Runs the Python of a page of reference, with smaller numbers; gives what it leaves behind."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(BEFORE[str(page.relative_to(ROOT))], namespace)
    for language, block in shortened(page):
        if language == "python":
            exec(compile(block, str(page), "exec"), namespace)
    return namespace


LEAST_ACCURACY = {
    "README.md": {"my-model": 0.95, "runs/digits/model": 0.95},
    "docs/tutorials/first-search.md": {"runs/digits/model": 0.95, "runs/retrained/model": 0.9},
}
"""Test accuracy that the models of a page must reach when it is run in whole."""


def run_whole(page: Path, least: dict[str, float]) -> None:
    """Runs the examples of a page that need no images but the digits, and checks the models that they leave behind."""
    namespace: dict[str, Any] = {}
    for language, block in blocks(page):
        if language == "python":
            exec(compile(block, str(page), "exec"), namespace)
        for line in typed(block) if language == "console" else ():
            if page.parent != ROOT or "digits" in line:  # the README has other examples as well
                run_line(line)
    for folder, accuracy in least.items():
        found = nasformer.evaluate(nasformer.load_model(folder), nasformer.load_data("digits"))["accuracy"]
        print(f"{page.name}: {folder} {found:.2%} on the test images of digits")
        assert found > accuracy, f"{page.name}: {folder} is right on {found:.2%}, not on more than {accuracy:.0%}"


def file_of(language: str, block: str) -> str | None:
    found = re.match(r"# (\w+\.py)\n", block)
    return found[1] if language == "python" and found else None


def run_line(line: str) -> None:
    profile = next(iter(Path("profiles").glob("*.json")), "") if "$PROFILE" in line else ""
    program, *words = shlex.split(line.replace("$PROFILE", str(profile)))
    if program == "nasformer":
        assert main(words) == 0, line


if __name__ == "__main__" and sys.argv[1:] == ["--whole"]:
    for name, accuracies in LEAST_ACCURACY.items():
        run_whole(ROOT / name, accuracies)
elif __name__ == "__main__":
    for path in sys.argv[1:]:
        run_page(Path(path))
