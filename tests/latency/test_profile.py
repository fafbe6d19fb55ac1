"""What a profile predicts, from tables that were made up."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from latency.fake import MICRO, fake_profile, milliseconds
from nasformer.errors import UserError
from nasformer.latency.profile import Entry, HoldOut, Law, Profile, features_of, fit_laws, fit_line, group_of, key_of
from nasformer.models.registry import get_space

ARCH = MICRO.sample(seed=1000)
PLAN = MICRO.plan(ARCH)


def test_the_sum_over_the_layers() -> None:
    profile = fake_profile()
    assert profile.latency_ms(PLAN) == pytest.approx(sum(map(milliseconds, PLAN)), abs=1e-4)
    assert profile.coverage(PLAN) == 1


def test_overhead_and_scale_are_applied() -> None:
    profile = fake_profile(overhead_ms=2.0, scale=1.5)
    assert profile.latency_ms(PLAN) == pytest.approx(2 + 1.5 * profile.sum_ms(PLAN), abs=1e-4)


def test_memory_is_weights_images_and_the_hungriest_layer() -> None:
    profile = fake_profile()
    params = [segment.cost().params for segment in PLAN]
    assert profile.memory_bytes(PLAN) == 4 * sum(params) + 256 + 1000 + max(params)


def test_a_profile_without_memory_says_nothing_of_it() -> None:
    table = {key: replace(entry, bytes=None) for key, entry in fake_profile().table.items()}
    profile = fake_profile(table=table)
    assert profile.costs(PLAN).keys() == {"latency_ms"}
    assert fake_profile().costs(PLAN).keys() == {"latency_ms", "memory_bytes"}


def test_kinds_beyond_the_table_follow_a_law() -> None:
    whole = fake_profile()
    blocks = [segment for segment in PLAN if segment.name.startswith("blocks.")]
    missing = key_of(blocks[0])
    part = {key: entry for key, entry in whole.table.items() if key != missing}
    segments = [segment for seed in range(50) for segment in MICRO.plan(MICRO.sample(seed))]
    profile = fake_profile(table=part, laws=fit_laws(segments, part))
    assert profile.coverage(PLAN) < 1
    assert profile.sum_ms(PLAN) == pytest.approx(whole.sum_ms(PLAN), rel=0.02)


def test_a_layer_like_none_in_the_table_is_refused() -> None:
    other = get_space("esformer-s0")
    with pytest.raises(UserError, match=r"the profile of autoformer-micro has no MapStem.*profile the space again"):
        fake_profile().latency_ms(other.plan(other.sample(0)))


def test_the_number_of_classes_makes_no_other_kind() -> None:
    more = MICRO.with_options(num_classes=1000, drop_path_rate=0.3).plan(ARCH)
    assert [key_of(segment) for segment in more] == [key_of(segment) for segment in PLAN]
    wider = MICRO.with_options(img_size=16).plan(ARCH)
    assert key_of(wider[1]) != key_of(PLAN[1])


def test_operators_have_laws_of_their_own() -> None:
    space = get_space("trionet-micro")
    groups = {group_of(segment) for seed in range(20) for segment in space.plan(space.sample(seed))}
    assert len({group for group in groups if group.startswith("Bottleneck")}) == 3


def test_a_law_stays_near_what_was_measured() -> None:
    law = Law.fit([{"size": 1.0}, {"size": 2.0}, {"size": 3.0}], [1.0, 10.0, 100.0])
    assert law({"size": 2.5}) == pytest.approx(10**1.5, rel=0.05)
    assert law({"size": 50.0}) == pytest.approx(200.0)
    assert law({"size": -50.0}) == pytest.approx(0.5)


def test_a_law_is_bent_towards_its_neighbours() -> None:
    sizes = [0.5 * step for step in range(20)]
    law = Law.fit([{"size": size} for size in sizes], [math.exp(size + math.sin(size / 2)) for size in sizes])
    between = [size + 0.25 for size in sizes[:-1]]
    misses = [abs(math.log(law({"size": size})) - size - math.sin(size / 2)) for size in between]
    straight = replace(law, pulls=[0.0] * len(law.pulls))
    assert sum(misses) < 0.5 * sum(
        abs(math.log(straight({"size": size})) - size - math.sin(size / 2)) for size in between
    )


def test_features_that_do_not_vary_have_no_say() -> None:
    law = Law.fit([{"size": 1.0, "same": 7.0}, {"size": 2.0, "same": 7.0}], [3.0, 6.0])
    assert law.names == ["size"]
    assert Law.fit([features_of(PLAN[0])], [5.0])({}) == pytest.approx(5.0)


def test_the_line_never_starts_below_zero() -> None:
    overhead, scale = fit_line([1, 2, 3], [0.5, 2.0, 3.5])
    assert overhead == 0
    assert scale > 0


def test_a_profile_is_the_same_when_read_again(tmp_path: Path) -> None:
    profile = fake_profile(overhead_ms=0.25)
    profile.save(tmp_path / "profile.json")
    again = Profile.load(tmp_path / "profile.json")
    assert again.fingerprint == profile.fingerprint
    assert again.costs(PLAN) == profile.costs(PLAN)
    assert fake_profile(overhead_ms=0.26).fingerprint != profile.fingerprint


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no profile.*make one with nasformer profile --out"),
        ({"space": "x"}, "is not a profile"),
        ({"profile": 99}, "another version"),
        (
            {"profile": 1, "table": {"a": {"ms": 1}}, "laws": {}},
            r"space is missing, expected a string; .*not a profile",
        ),
        ({**fake_profile().to_dict(), "scale": "big"}, 'scale is "big", expected a number; .*make one with nasformer'),
        ({**fake_profile().to_dict(), "table": {"a": 3}}, "table.a is 3, expected an object"),
        ({**fake_profile().to_dict(), "setup": {}}, "setup.device is missing, expected a string"),
    ],
)
def test_what_is_no_profile_is_refused(content: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=said):
        Profile.load(path)


def test_entries_keep_their_spread(tmp_path: Path) -> None:
    entry = Entry(2.0, 1.5, 2.5, 7, 100)
    fake_profile(table={"a": entry}, laws={}).save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json").table == {"a": entry}


def test_what_was_not_measured_is_not_written() -> None:
    content = fake_profile(holdout=HoldOut()).to_dict()
    assert content["holdout"] == {"nets": 0, "measured_ms": {}}
    assert content["machine"].keys() == {"processor", "cores", "versions"}
