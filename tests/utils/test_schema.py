"""Typed JSON: what is written comes back, and wrong data give an error that names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given, settings, strategies as st

from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.utils.schema import from_json, to_json


@dataclass(frozen=True)
class Epoch:
    step: int
    loss: float
    accuracy: float | None = None


@dataclass(frozen=True)
class Options:
    refuse_unknown: ClassVar[bool] = True

    img_size: int | tuple[int, int] = 224
    crop: Literal["random", "pad", "none"] = "none"


@dataclass(frozen=True)
class Run:
    name: str
    done: bool
    mean: tuple[float, ...]
    range: tuple[int, float]
    epochs: list[Epoch]
    costs: dict[str, float]
    blocks: dict[int, str]
    best: Epoch | None = None
    options: Options = field(default_factory=Options)
    extra: Any = None
    names: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    arch: Arch = field(default_factory=Arch)


@dataclass(frozen=True)
class Tree:
    children: list[Tree] = field(default_factory=list)


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


VALID: dict[str, Any] = {
    "name": "digits",
    "done": True,
    "mean": [0.5, 1],
    "range": [1, 2.5],
    "epochs": [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 1, "accuracy": None}],
    "costs": {"params": 12, "latency_ms": 0.5},
    "blocks": {"3": "conv"},
}
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=15)
NUMBERS = st.integers() | st.floats(allow_nan=False)
EPOCHS = st.builds(Epoch, st.integers(), NUMBERS, st.none() | NUMBERS)
RUNS = st.builds(
    Run,
    name=st.text(),
    done=st.booleans(),
    mean=st.lists(NUMBERS).map(tuple),
    range=st.tuples(st.integers(), NUMBERS),
    epochs=st.lists(EPOCHS, max_size=3),
    costs=st.dictionaries(st.text(), NUMBERS, max_size=3),
    blocks=st.dictionaries(st.integers(-(10**17), 10**17), st.text(), max_size=3),
    best=st.none() | EPOCHS,
    options=st.builds(
        Options, st.integers() | st.tuples(st.integers(), st.integers()), st.sampled_from(["random", "none"])
    ),
    extra=st.none() | st.lists(st.text()),
    names=st.lists(st.text(), max_size=3),
    facts=st.dictionaries(st.text(), st.booleans(), max_size=3),
    arch=st.builds(Arch, depth=st.integers(), blocks=st.lists(st.integers())),
)


@given(RUNS)
@settings(deadline=None, max_examples=50)
def test_what_is_written_comes_back(run: Run) -> None:
    assert from_json(Run, json.loads(json.dumps(to_json(run))), "run.json") == run


@given(JSON, st.sampled_from([*VALID, "best", "options", "arch", None]))
@settings(deadline=None, max_examples=200)
def test_any_json_is_read_or_refused_on_one_line(content: Any, key: str | None) -> None:
    data = content if key is None else {**VALID, key: content}
    message = refusal(data)
    assert message.startswith(("run.json: ", "run.json is ") if message else "")
    assert "\n" not in message


def refusal(data: Any) -> str:
    """Why the data are no run; empty if they are one."""
    try:
        from_json(Run, data, "run.json")
    except UserError as error:
        return str(error)
    return ""


def test_defaults_fill_in_and_unknown_keys_are_ignored() -> None:
    run = from_json(Run, {**VALID, "from a later version": 1}, "run.json")
    assert run.mean == (0.5, 1)
    assert run.epochs[0] == Epoch(1, 2.5)
    assert run.blocks == {3: "conv"}
    assert run.options == Options()


def test_nan_is_none_where_none_is_allowed() -> None:
    epoch = from_json(Epoch, {"step": 1, "loss": math.nan, "accuracy": math.nan}, "log")
    assert math.isnan(epoch.loss)
    assert epoch.accuracy is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "name is 3, expected a string"),
        ({"name": None}, "name is null, expected a string"),
        ({"done": 1}, "done is 1, expected true or false"),
        ({"mean": [0.5, True]}, "mean[1] is true, expected a number"),
        ({"range": [1]}, "range is a list of 1, expected a list of 2"),
        ({"range": [1.5, 2]}, "range[0] is 1.5, expected an integer"),
        ({"epochs": {}}, "epochs is an object, expected a list"),
        ({"epochs": [{"step": 1}]}, "epochs[0].loss is missing, expected a number"),
        ({"costs": {"a b": "x" * 99}}, f'costs["a b"] is "{"x" * 48}…, expected a number'),
        ({"blocks": {"x": "conv"}}, 'blocks.x is "x", expected an integer'),
        ({"best": {"step": "1", "loss": 1}}, 'best.step is "1", expected an integer'),
        ({"best": 5}, "best is 5, expected an object or null"),
        ({"options": {"crop": "resize"}}, 'options.crop is "resize", expected one of "random", "pad", "none"'),
        ({"options": {"img_size": "big"}}, 'options.img_size is "big", expected an integer or a list of 2'),
        ({"options": {"patch": 4}}, "options.patch is unknown, expected one of img_size, crop"),
        ({"name": 10**5000}, "name is a huge integer, expected a string"),
        ({"arch": {"depth": None}}, "arch is wrong (an arch cannot hold None (NoneType), expected numbers, strings, "),
    ],
)
def test_the_error_names_file_field_expectation_and_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        from_json(Run, VALID | change, "runs/a/run.json")
    assert str(error.value).startswith(f"runs/a/run.json: {message}")
    assert str(error.value).endswith("; restore the file or start in another folder")


def test_other_than_an_object_is_refused() -> None:
    with pytest.raises(UserError, match=r"^run\.json is null, expected an object; write it anew$"):
        from_json(Run, None, "run.json", remedy="write it anew")


def test_what_a_dataclass_refuses_is_named() -> None:
    with pytest.raises(UserError, match=r"range\.json: \[1\] is wrong \(low is above high\)"):
        from_json(list[Interval], [{"low": 0, "high": 1}, {"low": 2, "high": 1}], "range.json")


def test_nesting_beyond_the_stack_is_refused() -> None:
    data: dict[str, Any] = {}
    for _ in range(100_000):
        data = {"children": [data]}
    with pytest.raises(UserError, match="nested too deeply"):
        from_json(Tree, data, "tree.json")


def test_what_json_cannot_hold_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="set cannot be written as JSON"):
        to_json({"a": {1, 2}})
