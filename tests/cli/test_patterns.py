"""nasformer patterns: several run folders in, a table and verdicts out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nasformer.cli.main import main
from nasformer.models.registry import get_space
from nasformer.utils.files import read_json
from report.made_up import net, write_search
from small_run import refused


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    archs = [net(), net(kernels=(3, 3, 5, 9)), net(encoders=False)]
    return [str(write_search(tmp_path / f"seed{number}", arch)) for number, arch in enumerate(archs)]


def test_a_table_and_a_sentence_for_each_pattern(folders: list[str], capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["patterns", *folders]) == 0
    out = capsys.readouterr().out
    assert "3 winners of esformer-s0, budget: params <= 2.5M" in out
    assert "in brackets those of 300 random archs" in out
    assert out.count(": appears (") == 6


def test_json_and_files(folders: list[str], tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "patterns"
    assert main(["patterns", *folders, "--json", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["winners"], told["draws"]) == (3, 300)
    assert told["found"]["stage3"]["blocks"]["n"] == 5 + 5 + 5
    assert read_json(out / "patterns.json") == {"runs": folders, **told}
    assert (out / "patterns.png").read_bytes().startswith(b"\x89PNG")


def test_options_may_come_before_the_runs(folders: list[str], capsys: Any) -> None:
    assert main(["patterns", "--json", folders[2]]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["winners"] == 1
    assert {"no encoders there"} < {verdict["verdict"] for verdict in told["verdicts"]}


def test_a_real_search_has_patterns(finished: Path, capsys: Any) -> None:
    assert main(["patterns", str(finished), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["space"], told["budget"], told["verdicts"]) == ("autoformer-micro", "params <= 120K", [])
    assert told["found"]["whole net"]["depth"]["mean"] == len(
        read_json(finished / "result.json")["winner"]["arch"]["blocks"]
    )


def test_what_cannot_be_compared_is_refused(folders: list[str], tmp_path: Path, capsys: Any) -> None:
    micro = get_space("autoformer-micro")
    other = write_search(tmp_path / "other", micro.sample(0), space=micro.name, model_options=dict(micro.options))
    cheap = write_search(tmp_path / "cheap", net(), budget={"max_params": 1_500_000})
    large = write_search(tmp_path / "large", net(), model_options={"img_size": 128})
    wrong = write_search(tmp_path / "wrong", micro.sample(0))
    asked = {
        (): "say which searches: nasformer patterns RUN [RUN ...]",
        (folders[0], f"{folders[0]}/"): "is named twice",
        (*folders, str(other)): "has the space autoformer-micro, ",
        (*folders, str(cheap)): "has the budget max_params=1500000, ",
        (*folders, str(large)): "has the model options img_size=128, ",
        (str(wrong),): "unknown field 'embed_dim'",
        (str(tmp_path / "nowhere"),): "has no search result yet",
    }
    for runs, said in asked.items():
        assert said in refused(capsys, ["patterns", *runs])


def test_a_folder_without_a_search_is_refused(folders: list[str], capsys: Any) -> None:
    (Path(folders[0]) / "search" / "journal.jsonl").unlink()  # as that of a retraining
    assert "journal.jsonl does not exist; expected the journal of a search" in refused(capsys, ["patterns", *folders])
