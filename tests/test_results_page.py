"""Figures in the documentation come from records: the leading table is what they say, and a study writes a record."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import pages
from nasformer.results.verdict import Gain, load_evidence

STUDY = pages.ROOT / "benchmarks" / "study"
YAML = """
evidence: {road: supernet, method: A, data: D, images: 10, img_size: 8, budget: small}
seeds: 3
steps:
  - python FOLDER/step.py {work}/figures.json {seed} {data}
rows:
  searched: figures.json winner accuracy
  random: figures.json 'random *' accuracy
"""
STEP = """
import json, pathlib, sys
path, seed, data = sys.argv[1:]
calls = pathlib.Path(path).with_name("calls")
calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
rivals = {f"random {index}": {"accuracy": 0.5 + 0.1 * index} for index in (1, 2)}
pathlib.Path(path).write_text(json.dumps({"winner": {"accuracy": 0.7 + 0.01 * int(seed)}, **rivals}))
"""


def script(name: str) -> Any:
    """A module of benchmarks/study, which is no package."""
    spec = importlib.util.spec_from_file_location(name, STUDY / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


def test_leading_table_and_packaged_evidence_are_what_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--check"])
    assert script("evidence").main() == 0
    assert all((pages.ROOT / "benchmarks" / "records" / item.record).exists() for item in load_evidence())


def test_a_gain_is_shown_by_three_seeds_beyond_two_standard_errors() -> None:
    assert Gain(1.5, 0.7, 3).is_shown
    assert not Gain(1.5, 2.0, 3).is_shown
    assert not Gain(11.0, 0.0, 1).is_shown
    assert str(Gain(1.5, 0.7, 3)) == "+1.5 ± 0.7 (3 seeds)"


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_study_runs_each_seed_once_and_writes_gains(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if executor == "ray":
        pytest.importorskip("ray", reason="needs nasformer[ray]")
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "toy.yaml").write_text(YAML.replace("FOLDER", str(tmp_path)))
    words = ["toy.yaml", "--data", "images", "--work", "work", "--jobs", "2", "--out", "record.json"]
    words += ["--executor", executor, "--ray-address", "local"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["study.py", *words])
    for _ in range(2):  # the second time nothing is done again
        script("study").main()
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["results"]["gains"]["over_random"] == {
        "mean": pytest.approx(6.0),
        "std": pytest.approx(1.0),
        "seeds": 3,
    }
    assert record["results"]["p"]["random"] < 0.01
    assert [(tmp_path / "work" / "toy" / str(seed) / "calls").read_text() for seed in range(3)] == ["x"] * 3
    assert "| searched | 71.00 ± 1.00 | 3 |" in (tmp_path / "record.md").read_text()
    assert (tmp_path / "record.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("study", sorted(STUDY.glob("*.yaml")), ids=lambda path: path.stem)
def test_commands_of_a_study_are_understood(study: Path) -> None:
    from nasformer.utils.schema import read_yaml

    for step in read_yaml(study)["steps"]:
        words = shlex.split(step.format(seed=0, data="images.npz", work="work"))
        if words[0] == "nasformer":
            pages.parse(words[1:])
        else:
            assert (pages.ROOT / words[1]).exists()


def test_a_record_of_a_study_is_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("evidence")
    facts = {"road": "supernet", "method": "A", "data": "D", "images": 10, "img_size": 8, "budget": "small"}
    gains = {"over_random": {"mean": 1.0, "std": 0.5, "seeds": 3}}
    record = {"benchmark": "study", "settings": {"evidence": facts}, "results": {"gains": gains, "minutes": 2.0}}
    (tmp_path / "toy.json").write_text(json.dumps(record))
    monkeypatch.setattr(module, "RECORDS", tmp_path)
    (found,) = module.assemble()
    assert (found.over_random, found.minutes, found.record) == (Gain(1.0, 0.5, 3), 2.0, "toy.json")
