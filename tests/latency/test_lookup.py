"""Which profile a budget goes by, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from latency.fake import MICRO, fake_profile, in_profiles
from nasformer.cli.config import SampleCommand
from nasformer.errors import UserError
from nasformer.families.registry import get_space
from nasformer.latency.lookup import default_path, find_profile, profile_command, with_profile


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_a_word_on_latency_nothing_changes() -> None:
    assert with_profile(MICRO, SampleCommand(max_params="100K"), ["accuracy"]) == (MICRO, None)


@pytest.mark.parametrize(
    "asked", [{"max_latency": "5ms"}, {"max_memory": "1GB"}, {"latency_profile": "profiles/fake.json"}]
)
def test_the_only_profile_that_fits_is_taken(asked: dict[str, str], tmp_path: Path) -> None:
    in_profiles(tmp_path, fake_profile())
    in_profiles(tmp_path, fake_profile(MICRO.with_options(img_size=16)), "other-size")
    space, profile = with_profile(MICRO, SampleCommand(**asked))  # type: ignore[arg-type]
    assert profile is not None
    arch = MICRO.sample(1)
    assert space.costs(arch) == MICRO.costs(arch) | profile.costs(MICRO.plan(arch))


def test_an_objective_asks_for_a_profile_too(tmp_path: Path) -> None:
    in_profiles(tmp_path, fake_profile())
    _, profile = with_profile(MICRO, SampleCommand(), ["accuracy", "-latency_ms"])
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
        with_profile(MICRO, SampleCommand(max_memory="1GB"))
    assert with_profile(MICRO, SampleCommand(max_latency="1s"))[1]


def test_the_default_place() -> None:
    assert str(default_path(MICRO, "cuda", "compile", 8)) == "profiles/autoformer-micro-8px-cuda-compile-b8.json"
