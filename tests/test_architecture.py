"""The import graph: nothing imports upward, and what must start quickly imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nasformer

ROOT = Path(nasformer.__file__).parent
ORDER = (
    *("errors", "utils", "space", "search", "data", "layers", "models", "families", "supernet", "train", "tasks"),
    *("proxies", "export", "latency", "space_search", "results", "report", "runs", "cli"),
)
NO_TORCH = ("space", "search", "errors", "utils.files", "utils.progress", "utils.schema", "utils.units")


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        if path != ROOT / "__init__.py":
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


def imported(path: Path) -> Iterator[str]:
    """The modules of nasformer that a file imports when it runs; imports for type checkers do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node) for test in ast.walk(tree) if is_type_checking(test) for node in ast.walk(test)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and id(node) not in skipped
            and (node.module or "").startswith("nasformer.")
        ):
            yield (node.module or "").removeprefix("nasformer.")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("package", ORDER)
def test_nothing_imports_upward(package: str) -> None:
    upward = [
        f"{name} -> {target}"
        for name, path in modules()
        if name.partition(".")[0] == package
        for target in imported(path)
        if ORDER.index(target.partition(".")[0]) > ORDER.index(package)
    ]
    assert upward == []


def test_every_package_has_its_rank() -> None:
    assert {name.partition(".")[0] for name, _ in modules()} == set(ORDER)


@pytest.mark.parametrize("name", NO_TORCH)
def test_light_modules_import_nothing_heavy(name: str) -> None:
    files = [path for module, path in modules() if module == name or module.startswith(f"{name}.")]
    code = "import sys\n" + "".join(f"import nasformer.{dotted(path)}\n" for path in files)
    code += "print(*({'torch', 'timm', 'matplotlib', 'scipy', 'sklearn'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_runs_do_not_wait_for_timm() -> None:
    """With torchvision, which it imports, it takes as long as torch itself."""
    code = "import sys, nasformer.runs.run, nasformer.runs.single, nasformer.report.compare\n"
    code += "from nasformer.tasks.registry import get_task\nget_task('classify')\n"
    code += "print(*({'timm', 'torchvision', 'torch._dynamo'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
