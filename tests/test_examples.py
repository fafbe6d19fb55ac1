"""The examples: the plugin is installed and found by its entry point, the notebook runs and has its outputs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pages import ROOT, parse

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "digits_search.ipynb"
SHORTER = {
    "epochs=100": "epochs=1",
    "batch_size=64": "batch_size=256",
    '"population": 30, "generations": 6': '"population": 4, "generations": 2',
    '"evaluations": 40': '"evaluations": 4',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the pages on plugins were run, by a process that knows the example by its entry point alone.

    It is installed outside the environment of the tests, and without network.
    """
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(EXAMPLES / "plugin", folder / "source", ignore=shutil.ignore_patterns("build", "*.egg*"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    pages = [EXAMPLES / "plugin" / "README.md", ROOT / "docs" / "tutorials" / "extend.md"]
    command = [sys.executable, str(ROOT / "tests" / "pages.py"), *map(str, pages)]
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stdout)
    return folder


@pytest.mark.slow
def test_installed_plugin_is_known_to_every_command(folder: Path) -> None:
    printed = (folder / "printed").read_text()
    assert "convmixer-micro: ConvMixer for small images" in printed
    assert "mean over classes of the standard deviation of the logits" in printed
    assert "convmixer-micro, no limit" in printed
    result = json.loads((folder / "runs" / "convmixer" / "result.json").read_text())
    assert result["space"] == "convmixer-micro"


@pytest.mark.slow
def test_tutorial_of_plugins_runs(folder: Path) -> None:
    printed = (folder / "printed").read_text()
    assert "mine-micro: narrow networks for the digits" in printed
    assert "mine-micro, params <= 20K" in printed


def load_notebook() -> dict[str, Any]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cells: list[dict[str, Any]]) -> list[list[str]]:
    return [[output["output_type"] for output in cell["outputs"]] for cell in cells]


def test_notebook_runs_and_holds_its_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("execute", EXAMPLES / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stored, text = load_notebook(), NOTEBOOK.read_text(encoding="utf-8")
    for old, new in SHORTER.items():
        assert json.dumps(old)[1:-1] in text, old
        text = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    notebook = json.loads(text)
    module.execute(notebook)
    assert kinds(code_cells(notebook)) == kinds(code_cells(stored))
    assert all(cell["outputs"] for cell in code_cells(stored))
    assert [cell["execution_count"] for cell in code_cells(stored)] == [*range(1, len(code_cells(stored)) + 1)]


@pytest.mark.parametrize("path", sorted((EXAMPLES / "cluster").iterdir()), ids=lambda path: path.name)
def test_commands_for_clusters_are_commands(path: Path) -> None:
    """Files for SLURM and Kubernetes: the command that each starts can be parsed, and the file is what it says."""
    text = path.read_text().replace("\\\n", " ")
    if path.suffix == ".yaml":
        command = yaml.safe_load(text)["spec"]["entrypoint"]
    elif path.suffix == ".py":
        (command,) = re.findall(rf"^    python {path.name} .* -- (.*)$", text, re.MULTILINE)
    else:
        subprocess.run(["bash", "-n", str(path)], check=True)
        (command,) = re.findall(r"^.*((?:nasformer search|nasformer\.cli train) .*)$", text, re.MULTILINE)
    name, *words = shlex.split(command.replace("nasformer.cli", "nasformer").removeprefix("nasformer"))
    assert parse([name, *words])[1] is not None


@pytest.mark.slow
def test_submitit_runs_a_command_with_each_seed(tmp_path: Path) -> None:
    """As jobs of this machine, in place of SLURM's."""
    pytest.importorskip("submitit")
    search = (
        "search --space autoformer-micro --proxy dss --probe-size 4 --search.strategy random --search.evaluations 4"
    )
    command = [sys.executable, str(EXAMPLES / "cluster" / "seeds.py"), "--seeds", "2", "--out", str(tmp_path)]
    command += ["--cluster", "local", "--gpus", "0", "--", *search.split()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    seeds = [json.loads((tmp_path / name / "config.json").read_text())["seed"] for name in ("0", "1")]
    assert seeds == [0, 1]
    assert (tmp_path / "1" / "result.json").exists()
    done = subprocess.run([*command, "--proxy", "nonsense"], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "nonsense" in done.stderr
