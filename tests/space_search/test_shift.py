"""How far values move, and where they stop."""

from __future__ import annotations

import pytest

from nasformer.errors import UserError
from nasformer.space_search import clip_shift, shifted, smallest_gap, step_size, steps_against


@pytest.mark.parametrize(
    ("slope", "trunc", "floor"),
    [(-0.35, 3, 4), (-0.1, 1, 1), (-0.001, 0, 1), (0.0, 0, 0), (0.09, 0, 0), (0.1, -1, -1), (0.3, -3, -3)],
)
def test_steps_go_against_the_slope(slope: float, trunc: int, floor: int) -> None:
    assert steps_against(slope, 0.1, "trunc", 9) == trunc
    assert steps_against(slope, 0.1, "floor", 9) == floor
    assert abs(steps_against(slope, 0.1, "trunc", 1)) == min(abs(trunc), 1)
    assert steps_against(slope, 0.1, "floor", 0) == 0


def test_trunc_treats_both_ways_alike() -> None:
    for slope in (0.05, 0.1, 0.25, 7.0):
        assert steps_against(slope, 0.1, "trunc", 3) == -steps_against(-slope, 0.1, "trunc", 3)


def test_a_step_is_the_smallest_gap_or_as_asked() -> None:
    assert smallest_gap((2.0, 2.1, 2.4)) == 0.1
    assert step_size("stage1.embed_dim", (32, 48, 56), {}) == 8
    assert step_size("stage1.embed_dim", (32, 48, 56), {"embed_dim": 16.0}) == 16
    assert isinstance(step_size("stage1.embed_dim", (32, 48, 56), {"embed_dim": 16.0}), int)
    assert step_size("stage1.embed_dim", (32, 48), {"embed_dim": 4, "stage1.embed_dim": 2}) == 2
    with pytest.raises(UserError, match=r"the step of heads is 0\.5, but its values are whole numbers"):
        step_size("heads", (3, 4), {"heads": 0.5})
    assert step_size("ratio", (3, 3.5), {"ratio": 0.25}) == 0.25


def test_all_values_move_together() -> None:
    assert shifted((6, 10, 12), 2, 2) == (10, 14, 16)
    assert shifted((0.3, 0.4), -1, 0.1) == (0.2, 0.3)


def test_depth_stays_one_or_more() -> None:
    assert clip_shift((1, 2, 3), -1, 1) == (0, "kept at 1 or more")
    assert clip_shift((3, 4), -3, 1) == (-2, "kept at 1 or more")
    assert clip_shift((16, 32), -1, 16) == (0, "kept at 1 or more")
    assert clip_shift((2, 3), -1, 1) == (-1, "")
    assert clip_shift((0, 1), -1, 1) == (0, "kept at 1 or more")  # a depth of 0 that was there may stay


def test_numbers_stay_positive() -> None:
    assert clip_shift((0.5, 1.0), -1, 0.5) == (0, "kept above 0")
    assert clip_shift((0.75, 1.0), -2, 0.5) == (-1, "kept above 0")


def test_limits_are_kept() -> None:
    assert clip_shift((7, 14), 1, 7, (None, 14)) == (0, "kept at 14 or less")
    assert clip_shift((7, 14), 3, 7, (None, 28)) == (2, "kept at 28 or less")
    assert clip_shift((2.0, 3.0), -1, 1.0, (1.5, None)) == (0, "kept at 1.5 or more")


def test_who_is_outside_may_come_back_but_not_go_on() -> None:
    assert clip_shift((8, 16), 1, 8, (None, 12)) == (0, "kept at 12 or less")
    assert clip_shift((8, 16), -1, 4, (None, 4)) == (-1, "")
