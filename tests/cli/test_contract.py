"""The answers of public commands, compared with those of version 0.1 (tests/golden/commands.json).

An answer may have further fields, and at its end further names or lines, such as those of new spaces; but what was
there is still there and the same. Times of the clock and what was changed on purpose are left out of what is stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "commands.json").read_text())
TOLERANCE = 1e-4  # relative, of scores in single precision


def differences(found: Any, expected: Any, where: str = "answer") -> Iterator[str]:
    """Where an answer is not as expected."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name, value in expected.items():
            if name in found:
                yield from differences(found[name], value, f"{where}.{name}")
            else:
                yield f"{where}.{name} is missing"
    elif isinstance(expected, list) and isinstance(found, list) and len(named(found, expected)) == len(expected):
        for number, value in enumerate(expected):
            yield from differences(found[number], value, f"{where}[{number}]")
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=1e-9):
            yield f"{where} is {found}, not {expected}"
    elif found != expected:
        yield f"{where} is {found!r}, not {expected!r}"


def named(found: list[Any], expected: list[Any]) -> list[Any]:
    """The items to compare: of a list of names, as many as there were."""
    return found[: len(expected)] if all(isinstance(item, str) for item in expected) else found


@pytest.mark.parametrize("name", GOLDEN["commands"])
def test_commands_answer_as_before(name: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = GOLDEN["commands"][name]
    (tmp_path / "table.json").write_text(json.dumps(GOLDEN["table"]))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    code = main(stored["argv"])
    out, err = capsys.readouterr()
    assert code == (2 if "error" in stored else 0), err
    if "json" in stored:
        assert list(differences(json.loads(out), stored["json"])) == []
    elif "error" in stored:
        assert err == stored["error"]
    else:
        assert out.startswith(stored["text"])


def test_the_comparison_sees_what_differs() -> None:
    expected = {"params": 5, "scores": [0.5, {"dss": 1.0}], "name": "x"}
    assert list(differences({**expected, "more": 1, "scores": [0.50001, {"dss": 1.0}]}, expected)) == []
    assert list(differences(["a", "b", "c"], ["a", "b"])) == []
    assert list(differences([1, 2], [1])) == ["answer is [1, 2], not [1]"]
    found = {"params": 6, "scores": [0.6, {}]}
    assert list(differences(found, expected)) == [
        "answer.params is 6, not 5",
        "answer.scores[0] is 0.6, not 0.5",
        "answer.scores[1].dss is missing",
        "answer.name is missing",
    ]
