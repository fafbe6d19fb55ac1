from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.models.registry import get_space
from nasformer.proxies.ranking import read_table
from nasformer.search.run import search

SPACE = get_space("autoformer-tiny")
ARCH = {"embed_dim": 192, "depth": 12, "num_heads": [3] * 12, "mlp_ratio": [3.5] * 12}


def row(arch: Any = ARCH, **accuracy: Any) -> dict[str, Any]:
    return {"arch": arch, "accuracy": accuracy, "seen": "ignored"}


def write(folder: Path, **changes: Any) -> Path:
    rows = [row(a=70.0, b=1), row(SPACE.sample(1).to_dict(), a=71), row(a=72.5, b=None), row(a=73.0, b=2.0)]
    content = {"note": "made up", "space": "autoformer-tiny", "model": {"head_dim": None}, "rows": rows, **changes}
    path = folder / "table.json"
    path.write_text(json.dumps({name: value for name, value in content.items() if value != "absent"}))
    return path


def test_reads_archs_options_and_columns(tmp_path: Path) -> None:
    table = read_table(write(tmp_path))
    assert table.note == "made up"
    assert table.space.options["head_dim"] is None
    assert table.archs[0] == table.archs[2] == SPACE.arch(ARCH)
    assert table.archs[1] == SPACE.sample(1)
    assert table.columns == ["a", "b"]
    assert table.accuracy["a"] == [70, 71, 72.5, 73]
    assert [math.isnan(value) for value in table.accuracy["b"]] == [False, True, True, False]


def test_note_and_model_may_be_left_out(tmp_path: Path) -> None:
    table = read_table(str(write(tmp_path, note="absent", model="absent")))
    assert table.note == ""
    assert table.space == SPACE


def test_select_leaves_out_rows_without_the_target(tmp_path: Path) -> None:
    rows = [row(a=1, b=5), row(SPACE.sample(1).to_dict(), a=2), row(a=3, b=6), row(b=7)]
    table = read_table(write(tmp_path, rows=rows)).select("b")
    assert table.accuracy["b"] == [5, 6, 7]
    assert table.accuracy["a"][:2] == [1, 3]
    assert table.archs == [SPACE.arch(ARCH)] * 3
    assert table.select("b").accuracy["b"] == [5, 6, 7]


@pytest.mark.parametrize(
    ("target", "words"),
    [("c", "no column 'c'; it has: a, b"), ("b", "2 rows with 'b'; ranking needs 3 or more")],
)
def test_targets_that_cannot_be_ranked(tmp_path: Path, target: str, words: str) -> None:
    path = write(tmp_path)
    with pytest.raises(UserError) as error:
        read_table(path).select(target)
    assert words in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": "autoformer-tini"}, "did you mean autoformer-tiny?"),
        ({"space": "absent"}, "space is missing, expected a text"),
        ({"model": {"heads": 3}}, "no model option 'heads'"),
        ({"model": {"global_pool": "sum"}}, "global_pool"),
        ({"model": {"img_size": "big"}}, 'img_size is "big", expected an integer'),
        ({"model": {"patch_size": 0}}, "patch_size is 0; give a number from 1"),
        ({"model": [1]}, "model is [1], expected an object"),
        ({"note": 3}, "note is 3, expected a text"),
        ({"rows": "absent"}, "rows is missing, expected a list"),
        ({"rows": [row(a=1), row(a=2)]}, "has 2 rows; ranking needs 3 or more"),
        ({"rows": [row(a=1), 7, row(a=2)]}, "row 2: the row is 7, expected an object"),
        ({"rows": [row(a=1), row(a=1), {"accuracy": {}}]}, "row 3: arch is missing, expected an object"),
        ({"rows": [row("AutoFormer-T", a=1)] * 3}, 'row 1: arch is "AutoFormer-T", expected an object'),
        ({"rows": [row(a=1), row({**ARCH, "embed_dim": 200}, a=1), row(a=2)]}, "row 2: arch.embed_dim is 200"),
        ({"rows": [row(a=1), row(a=2), {"arch": ARCH}]}, "row 3: accuracy is missing, expected an object"),
        ({"rows": [row(a=1), row(a="high"), row(a=2)]}, "row 2: accuracy 'a' is 'high', expected a number"),
        ({"rows": [row(a=1), row(a=True), row(a=2)]}, "row 2: accuracy 'a' is 'True', expected a number"),
    ],
)
def test_errors_name_the_file_and_the_row(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(UserError) as error:
        read_table(path)
    assert str(error.value).startswith(f"table {path}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{", "not valid JSON"), (b"\xff\xfe", "not valid JSON"), (b"[1]", "the content is [1], expected an object")],
)
def test_files_that_hold_no_table(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "table.json").write_bytes(content)
    with pytest.raises(UserError, match=r"^table .*table\.json: ") as error:
        read_table(tmp_path / "table.json")
    assert words in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.json: no such file"):
        read_table(tmp_path / "missing.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_table(tmp_path)


def test_the_candidates_of_a_run_are_a_table(tmp_path: Path) -> None:
    space = get_space("autoformer-micro", img_size=16)
    found = search(
        space,
        lambda arch: {"accuracy": space.costs(arch)["params"] / 1e6},
        space.costs,
        strategy="random",
        options={"evaluations": 5},
        journal=tmp_path / "search" / "journal.jsonl",
        settings={"space": space.name, "model_options": {"img_size": 16}},
    )
    table = read_table(tmp_path)
    assert table.archs == [candidate.arch for candidate in found.candidates]
    assert table.columns == ["accuracy"]
    assert table.space.options["img_size"] == 16
    with pytest.raises(UserError, match="a folder without a search"):
        read_table(tmp_path / "search")
