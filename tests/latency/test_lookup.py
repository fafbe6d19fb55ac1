"""Which profile a budget goes by, and what is said where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latency.fake import ELSEWHERE, HERE, MICRO, SETUP, fake_profile, in_profiles
from nasformer.errors import UserError
from nasformer.latency.profile import HoldOut, Profile
from nasformer.latency.search import (
    check_replaceable,
    default_path,
    find_profile,
    profile_command,
    round_up_time,
    suggested_latency,
    unused_path,
    with_profile,
)
from nasformer.models.registry import get_space
from nasformer.search.options import BudgetOptions
from nasformer.utils.units import parse_milliseconds


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_a_word_on_latency_nothing_changes() -> None:
    assert with_profile(MICRO, BudgetOptions(max_params="100K"), ["accuracy"]) == (MICRO, None)


@pytest.mark.parametrize(
    "asked", [{"max_latency": "5ms"}, {"max_memory": "1GB"}, {"latency_profile": "profiles/fake.json"}]
)
def test_the_only_profile_that_fits_is_taken(asked: dict[str, str], tmp_path: Path) -> None:
    in_profiles(tmp_path, fake_profile())
    in_profiles(tmp_path, fake_profile(MICRO.with_options(img_size=16)), "other-size")
    space, profile = with_profile(MICRO, BudgetOptions(**asked))  # type: ignore[arg-type]
    assert profile is not None
    arch = MICRO.sample(1)
    assert space.costs(arch) == MICRO.costs(arch) | profile.costs(MICRO.plan(arch))


def test_an_objective_asks_for_a_profile_too(tmp_path: Path) -> None:
    in_profiles(tmp_path, fake_profile())
    _, profile = with_profile(MICRO, BudgetOptions(), ["accuracy", "-latency_ms"])
    assert profile is not None


def test_nothing_profiled_says_what_to_run() -> None:
    command = "nasformer profile --space autoformer-micro --img-size 8 --in-chans 1 --device cuda"
    with pytest.raises(UserError, match=f"nothing was profiled .* measure it first: {command}$"):
        find_profile(MICRO, None, "cuda")


def test_the_command_names_options_without_a_flag() -> None:
    space = get_space("autoformer-micro", num_classes=7, max_relative_position=4)
    wanted = """nasformer profile --space autoformer-micro --model '{"max_relative_position": 4}' --device cpu"""
    assert profile_command(space, "cpu") == wanted


def test_several_that_fit_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        in_profiles(tmp_path, fake_profile(), name)
    with pytest.raises(UserError, match=r"name one with --latency-profile: profiles/one.json, profiles/two.json"):
        find_profile(MICRO, None)
    assert find_profile(MICRO, "profiles/two.json").space == "autoformer-micro"


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (MICRO.with_options(img_size=16), "it was measured with img_size 8, not 16"),
        (get_space("autoformer-tiny"), "it is of autoformer-micro, not of autoformer-tiny"),
    ],
)
def test_a_profile_of_something_else_is_refused(space: object, said: str, tmp_path: Path) -> None:
    path = in_profiles(tmp_path, fake_profile())
    with pytest.raises(UserError, match=f"does not fit: {said}.*; measure this one: nasformer profile --space"):
        find_profile(space, str(path))  # type: ignore[arg-type]


def test_another_number_of_classes_is_no_obstacle(tmp_path: Path) -> None:
    in_profiles(tmp_path, fake_profile())
    assert find_profile(MICRO.with_options(num_classes=3, drop_path_rate=0.5), None)


def test_memory_needs_a_backend_that_tells(tmp_path: Path) -> None:
    table = {key: entry.__class__(1.0, 1.0, 1.0, 1, None) for key, entry in fake_profile().table.items()}
    in_profiles(tmp_path, fake_profile(table=table))
    with pytest.raises(UserError, match="memory was not measured with backend eager"):
        with_profile(MICRO, BudgetOptions(max_memory="1GB"))
    assert with_profile(MICRO, BudgetOptions(max_latency="1s"))[1]


def test_the_default_file_names_the_settings() -> None:
    assert str(default_path(MICRO, "cuda", "compile", 8, 2)) == "profiles/autoformer-micro-8px-cuda-compile-b8-t2.json"


# Several profiles


def test_profiles_of_other_patches_stand_side_by_side(tmp_path: Path) -> None:
    settings = ("cpu", "eager", 1, 1)
    usual = default_path(MICRO, *settings)
    assert unused_path(MICRO, *settings) == usual
    fake_profile().save(usual)
    assert unused_path(MICRO, *settings) == usual  # measured again
    other = unused_path(MICRO.with_options(patch_size=2), *settings)
    assert other.parent == usual.parent
    assert other.stem.startswith(f"{usual.stem}-")
    usual.write_text("{}")
    assert unused_path(MICRO, *settings) == usual


def settings(name: str, value: object) -> Profile:
    return fake_profile(setup=replace(SETUP, **{name: value}))


@pytest.mark.parametrize(
    ("name", "value"), [("threads", 4), ("batch_size", 8), ("backend", "compile"), ("device", "cuda")]
)
def test_of_several_that_fit_the_usual_one_is_taken_and_named(
    name: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_profiles(tmp_path, settings(name, value), "a")
    assert getattr(find_profile(MICRO, None).setup, name) == value  # the only one
    in_profiles(tmp_path, fake_profile(), "b")
    assert capsys.readouterr().err == ""
    assert find_profile(MICRO, None).setup == SETUP
    assert "latency by profiles/b.json, one of 2 profiles that fit" in capsys.readouterr().err


def test_the_profile_of_the_device_is_taken(tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        in_profiles(tmp_path, settings("device", device), device)
    assert find_profile(MICRO, None, "cuda").setup.device == "cuda"


def test_an_inaccurate_profile_must_be_named(tmp_path: Path) -> None:
    path = in_profiles(tmp_path, fake_profile(holdout=HoldOut(nets=30, median_error=0.23)))
    with pytest.raises(UserError, match=r"fake\.json predicts nets with a median error of 23%, more than 10%; measure"):
        with_profile(MICRO, BudgetOptions(max_latency="1s"))
    assert with_profile(MICRO, BudgetOptions(max_latency="1s", latency_profile=str(path)))[1]
    in_profiles(tmp_path, settings("threads", 4), "other")
    assert find_profile(MICRO, None).setup.threads == 4


def test_a_file_that_is_no_profile_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_profiles(tmp_path, fake_profile())
    (tmp_path / "profiles" / "other.json").write_text("[]")
    assert find_profile(MICRO, None)
    assert "warning: profiles/other.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": 2}, "it was measured with threads 1, not 2"),
        ({"batch_size": 8}, "it was measured with batch_size 1, not 8"),
        ({"space": MICRO.with_options(img_size=16)}, "it was measured with img_size 8, not 16"),
        ({"machine": ELSEWHERE}, "it is of another machine"),
    ],
)
def test_a_profile_with_other_settings_is_never_replaced(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = in_profiles(tmp_path, fake_profile())
    wanted: dict[str, Any] = {"space": MICRO, "machine": HERE, "device": "cpu", "backend": "eager"}
    wanted |= {"batch_size": 1, "threads": 1}
    check_replaceable(path, **wanted)
    check_replaceable(tmp_path / "new.json", **wanted | changes)
    with pytest.raises(UserError, match=f"fake.json holds another profile: {message}.*; remove it or choose another"):
        check_replaceable(path, **wanted | changes)
    path.write_text("{}")
    with pytest.raises(UserError, match="exists and is no profile"):
        check_replaceable(path, **wanted)


def test_the_suggested_latency_is_one_that_nets_have() -> None:
    times = {"a": 3.21, "b": 1.1, "c": 9.0}
    assert suggested_latency(fake_profile(holdout=HoldOut(nets=3, measured_ms=times))) == "3.3ms"
    assert suggested_latency(fake_profile()) is None
    for ms in (0.0012345, 0.5, 0.999, 1.0, 9.96, 123.4, 54321.0):
        assert ms <= parse_milliseconds(round_up_time(ms)) <= 1.11 * ms
