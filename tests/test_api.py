"""The public API: visible to `dir()`, to type checkers and to users of the documentation."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nasformer

PROGRAM = '''
import torch
import nasformer
from nasformer import Arch, Budget, Choice, OneOf, Recipe, Repeat, RunResult, SearchResult, Space, Struct, UserError

class Half(nasformer.Strategy):
    """Draws half as many."""

    def __init__(self, problem: nasformer.Problem, evaluations: int = 10) -> None:
        super().__init__(problem)
        self.evaluations = evaluations

    @property
    def done(self) -> bool:
        return len(self.candidates) >= self.evaluations

    def ask(self) -> list[nasformer.Proposal]:
        return self.draw(self.evaluations)

nasformer.register_strategy("half", Half)
space: Space = nasformer.get_space("autoformer-micro", img_size=8, patch_size=2)
arch: Arch = space.sample(seed=0)
supernet = nasformer.Supernet(space)
data: nasformer.Data = nasformer.load_data("digits")
nasformer.train_supernet(supernet, data, Recipe(epochs=1))
result: SearchResult = nasformer.search_supernet(supernet, data, budget=Budget(max_params=120_000))
logits: torch.Tensor = supernet.extract(result.best.arch)(torch.zeros(1, 1, 8, 8))
def winner(run: RunResult) -> float:
    return run.winner["test_accuracy"]
reveal_type(result.best)
wrong: int = space.sample(seed=0)
'''


def test_every_name_can_be_used_and_is_listed() -> None:
    for name in nasformer.__all__:
        assert getattr(nasformer, name) is not None
    assert set(nasformer.__all__) <= set(dir(nasformer))


def test_what_type_checkers_see_is_what_there_is() -> None:
    tree = ast.parse(Path(nasformer.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {
        (alias.name, (node.module or "").removeprefix("nasformer."))
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == {(name, home) for name, home in nasformer._HOMES.items() if name != "__version__"}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = nasformer.nonsense


def test_a_users_program_is_type_checked(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # with our own configuration, so that what `make lint` has checked need not be checked again
    command = [sys.executable, "-m", "mypy", str(program)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert 'Revealed type is "nasformer.search.problem.Candidate"' in done.stdout
    assert len(errors) == 1, done.stdout
    assert "Incompatible types in assignment" in errors[0]  # the one mistake that the program makes


def test_importing_it_is_quick() -> None:
    code = "import sys, nasformer; print(*({'torch', 'timm', 'matplotlib', 'scipy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
