"""Sampling under a budget: exact when draws suffice, repaired when rare, clearly refused when impossible."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest

from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.space.budget import Window, check_satisfiable, sample_feasible
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct

BLOCK = Struct(num_heads=Choice(3, 4), mlp_ratio=Choice(3.5, 4.0))
TINY = Struct(embed_dim=Choice(192, 216, 240), blocks=Repeat(BLOCK, depth=Choice(12, 13, 14)))


def costs(arch: Arch) -> dict[str, float]:
    """About what an AutoFormer costs: grows with every choice."""
    dim = arch.embed_dim
    params = sum(4 * 64 * b.num_heads * dim + 2 * int(b.mlp_ratio * dim) * dim for b in arch.blocks)
    return {"params": params, "macs": 197 * params + 2 * 197**2 * 64 * sum(b.num_heads for b in arch.blocks)}


LEAST, MOST = costs(TINY.smallest())["params"], costs(TINY.largest())["params"]


def message(*windows: Window) -> str:
    with pytest.raises(UserError) as caught:
        check_satisfiable(TINY, costs, windows)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_impossible_windows_are_refused_with_the_reach_of_the_space() -> None:
    reach = f"the smallest has {LEAST:,.0f} and the largest {MOST:,.0f}"
    assert message(Window("params", high=3_000_000)) == (
        f"no architecture fits params <= 3M: {reach}; raise --max-params or choose another space"
    )
    assert message(Window("params", low=12_500_000)) == (
        f"no architecture fits params >= 12.5M: {reach}; lower --min-params or choose another space"
    )
    assert "between 1M and 2M" in message(Window("params", 1e6, 2e6))
    assert "--min-params 7,000,000 is above --max-params 6,000,000" in message(Window("params", 7e6, 6e6))
    assert "no cost 'flops' to limit, known costs: params, macs" in message(Window("flops", high=1))


def test_limits_are_inclusive() -> None:
    ends = [Window("params", LEAST, LEAST), Window("macs")]
    check_satisfiable(TINY, costs, ends)
    check_satisfiable(TINY, costs, [Window("params", low=MOST)])
    assert message(Window("params", high=LEAST - 1))
    assert sample_feasible(TINY, Random(0), costs, ends, tries=0) == TINY.smallest()


def test_options_need_not_be_in_order_of_cost() -> None:
    price = {"cheap": 1, "mid": 5, "dear": 9}
    space = Repeat(OneOf(mid=Choice(1, 2), dear=Choice(1, 2), cheap=Choice(1, 2)), depth=Choice(1, 2, 3))

    def total(value: tuple[Arch, ...]) -> dict[str, float]:
        return {"price": sum(price[name] * item[name] for item in value for name in item)}

    check_satisfiable(space, total, [Window("price", high=1), Window("price", low=54)])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the smallest has 1 and the largest 54"):
        check_satisfiable(space, total, [Window("price", low=55)])  # type: ignore[arg-type]


def test_accepted_draws_have_the_conditional_distribution() -> None:
    space = Struct(a=Choice(1, 2, 3, 4), b=Choice(1, 2, 3, 4))
    rng, counts = Random(0), Counter[Arch]()
    for _ in range(6000):
        counts[sample_feasible(space, rng, lambda x: {"sum": x.a + x.b}, [Window("sum", 7)])] += 1
    assert len(counts) == 3
    assert all(abs(count - 2000) < 160 for count in counts.values())  # 4 sigma


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "windows",
    [
        [Window("params", high=LEAST * 1.01)],
        [Window("params", low=MOST * 0.99)],
        [Window("params", 5_000_000, 5_020_000)],
        [Window("params", 5_000_000, 5_100_000), Window("macs", high=1_200_000_000)],
    ],
)
def test_repair_reaches_narrow_windows(windows: list[Window], seed: int) -> None:
    arch = sample_feasible(TINY, Random(seed), costs, windows, tries=0)
    assert TINY.contains(arch)
    assert all(window.excess(costs(arch)) == 0 for window in windows)
    assert arch == sample_feasible(TINY, Random(seed), costs, windows, tries=0)


def test_repair_changes_operators_and_depth() -> None:
    space = Struct(blocks=Repeat(OneOf(big=Choice(50, 60), small=Choice(1, 2)), depth=Choice(1, 4, 8)))

    def size(arch: Arch) -> dict[str, float]:
        return {"size": sum(sum(block.values()) for block in arch.blocks)}

    arch = sample_feasible(space, Random(0), size, [Window("size", 8, 8)], tries=0)
    assert size(arch) == {"size": 8}


def test_failure_tells_the_closest_and_ends() -> None:
    calls = 0

    def counted(arch: Arch) -> dict[str, float]:
        nonlocal calls
        calls += 1
        return costs(arch)

    window = Window("params", 5_000_001, 5_000_002)
    with pytest.raises(UserError) as caught:
        sample_feasible(TINY, Random(0), counted, [window])
    wanted, closest, advice = str(caught.value).split("; ")
    assert wanted == "found no architecture with params between 5,000,001 and 5,000,002"
    assert re.search(r"params [\d,]+ below", closest)
    assert re.search(r"params [\d,]+ above", closest)
    assert set(advice.split(" or ")) == {"lower --min-params", "raise --max-params"}
    assert calls < 50_000


def test_contradicting_windows_say_which_limits_clash() -> None:
    windows = [Window("params", low=9_000_000), Window("macs", high=1_200_000_000)]
    check_satisfiable(TINY, costs, windows)
    with pytest.raises(UserError, match=r"params [\d,]+ below.*macs [\d,]+ above") as caught:
        sample_feasible(TINY, Random(0), costs, windows)
    assert "lower --min-params" in str(caught.value)
    assert "raise --max-macs" in str(caught.value)


def test_flags_have_hyphens_and_no_units() -> None:
    assert Window("position_macs").flag("min") == "--min-position-macs"
    assert Window("latency_ms").flag("max") == "--max-latency"
    assert Window("memory_bytes").flag("max") == "--max-memory"
