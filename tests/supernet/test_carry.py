"""Weights that go from one supernet to another: members of both spaces compute what they computed before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Size

from families.small import FAMILIES, images, randomise, some_archs
from nasformer.errors import UserError
from nasformer.models.sharing import SharingRule, centre_crop, grouped_prefix, prefix
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions
from nasformer.space.nodes import FIRST, corners
from nasformer.supernet.storage import Carried, carry_over, copy_slice
from nasformer.supernet.supernet import Supernet

from .toy import alternatives_space, toy_esformer, toy_space

TRIO = FAMILIES["trionet"].with_choices({f"stage{stage}.blocks.depth": [1] for stage in (1, 3, 4)})
SPACES = {**FAMILIES, "trionet": TRIO, "alternatives": alternatives_space()}
QUICK = ("autoformer", "s3", "alternatives")  # tokens, windows, operators to choose from
each_space = pytest.mark.parametrize(
    "space",
    [pytest.param(space, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, space in SPACES.items()],
)


def more(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """One value more at the upper end: as far as the one before it, or twice as much where there is but one."""
    return (*values, 2 * values[-1] - (values[-2] if len(values) > 1 else 0))


def wider(space: Space) -> Space:
    """Every dimension with a larger value: wider, deeper, with larger kernels and more heads."""
    known = {name: choice.values for name, choice in dimensions(space.root).items()}
    if space.model.family == "trionet":  # whose widths must be multiples of the heads
        known = {name: values for name, values in known.items() if not name.endswith("num_heads")}
    return space.with_choices({name: more(values) for name, values in known.items()})


def supernets(old: Space, new: Space) -> tuple[Supernet, Supernet]:
    """Two that have nothing in common: all weights and statistics are random."""
    return randomise(Supernet(old, seed=1), seed=2).eval(), randomise(Supernet(new, seed=3), seed=4).eval()


@torch.no_grad()
def same_logits(old: Supernet, new: Supernet, arch: Arch) -> bool:
    assert old.space.root.contains(arch)
    assert new.space.root.contains(arch)
    x = images(old.space)
    return torch.equal(old(x, arch), new(x, arch))


@each_space
def test_members_keep_their_logits_when_the_space_grows(space: Space) -> None:
    old, new = supernets(space, wider(space))
    before = {name: tensor.clone() for name, tensor in new.shared().items()}
    assert not same_logits(old, new, space.root.largest())
    carried = carry_over(old, new)
    assert [label for label, arch in some_archs(space, 2).items() if not same_logits(old, new, arch)] == []
    assert carried.inexact == ()
    assert carried.part > 0
    assert carried.whole + carried.part + carried.fresh == len(before)
    fresh = [name for name, tensor in new.shared().items() if torch.equal(tensor, before[name])]
    assert new.shared().keys() - old.shared().keys() <= set(fresh)
    assert carried.fresh == len(new.shared().keys() - old.shared().keys()) > 0


@each_space
def test_members_keep_their_logits_when_the_space_shrinks(space: Space) -> None:
    old, new = supernets(wider(space), space)
    carried = carry_over(old, new)
    assert (carried.whole, carried.part, carried.fresh) == (len(new.shared()), 0, 0)
    if space.model.family == "trionet":
        return  # see below
    assert carried.inexact == ()
    assert [label for label, arch in some_archs(space, 2).items() if not same_logits(old, new, arch)] == []


@pytest.mark.parametrize("name", ["autoformer", "trionet"])  # sliced by prefixes, and by heads
def test_the_same_space_gets_a_copy(name: str) -> None:
    space = SPACES[name]
    old, new = supernets(space, space)
    assert carry_over(old, new) == Carried(len(new.shared()), 0, 0)
    assert all(torch.equal(tensor, old.shared()[name]) for name, tensor in new.shared().items())


def test_what_comes_in_part_leaves_the_rest_as_it_was() -> None:
    old, new = supernets(toy_space(), toy_space().with_choices({"embed_dim": [32, 64]}))
    before = new.shared()["blocks.0.norm1.weight"].clone()
    carry_over(old, new)
    after = new.shared()["blocks.0.norm1.weight"]
    assert torch.equal(after[:48], old.shared()["blocks.0.norm1.weight"])
    assert torch.equal(after[48:], before[48:])


def test_a_space_that_moved_away_takes_along_what_fits() -> None:
    """No arch is a member of both, yet the first blocks and channels are worth keeping."""
    moved = toy_space().with_choices({"embed_dim": [56, 64], "blocks.depth": [1]})
    old, new = supernets(toy_space(), moved)
    carried = carry_over(old, new)
    assert (carried.fresh, carried.inexact) == (0, ())
    qkv = [net.shared()["blocks.0.attn.qkv.weight"].unflatten(0, (3, -1)) for net in (old, new)]
    assert torch.equal(qkv[1][:, :, :48], qkv[0])  # q, k and v each; heads are the same


def test_weights_of_alternatives_that_do_not_change_come_whole() -> None:
    space = toy_esformer()
    old, new = supernets(space, space.with_choices({"stage1.blocks.ibn.kernel": [3, 5, 7]}))
    assert carry_over(old, new) == Carried(len(new.shared()) - 2, 2, 0)  # the kernels of two blocks
    assert all(same_logits(old, new, arch) for arch in some_archs(space, 2).values())


def of_heads(count: int) -> Space:
    return TRIO.with_choices({name: [count] for name in dimensions(TRIO.root) if name.endswith("num_heads")})


def with_expansion(*values: float) -> Space:
    names = [name for name in dimensions(TRIO.root) if name.endswith(("local.expansion", "axial.expansion"))]
    return TRIO.with_choices(dict.fromkeys(names, values))


@pytest.mark.parametrize("values", [(0.25,), (0.25, 0.5, 0.75)], ids=["narrower", "wider"])
def test_where_heads_collide_those_with_the_most_stay_exact(values: tuple[float, ...]) -> None:
    old, new = supernets(TRIO, with_expansion(*values))
    carried = carry_over(old, new)
    assert {name.rpartition("blocks.")[2][2:] for name in carried.inexact} == {
        "expand.weight",
        "local.query.weight",
        "local.key.weight",
        "local.value.weight",
        "local.positions",
        "local.norm.weight",
        "local.norm.bias",
        *(f"axial.{axis}.{part}.weight" for axis in ("height", "width") for part in ("query", "key", "value")),
        "axial.norm.weight",
        "axial.norm.bias",
    }
    assert f"; {len(carried.inexact)} of them fit only the members with the most heads" in str(carried)
    both = with_expansion(*values[:2]).root
    _, local, axial = corners(both)
    for arch in (local, axial, both.smallest(local), both.smallest(axial)):
        most = of_heads(4).root.adapt(arch, FIRST)
        assert same_logits(old, new, most)
    assert not same_logits(old, new, of_heads(2).root.adapt(local, FIRST))


def test_twice_as_many_channels_suit_all_heads() -> None:
    old, new = supernets(TRIO, with_expansion(0.25, 0.5, 1.0))
    assert carry_over(old, new).inexact == ()
    assert all(same_logits(old, new, arch) for arch in some_archs(TRIO, 2).values())


def test_other_heads_at_the_same_widths_get_all() -> None:
    old, new = supernets(of_heads(2), of_heads(4))
    assert carry_over(old, new) == Carried(len(new.shared()), 0, 0)


def test_plain_prefixes_have_no_such_collisions() -> None:
    options = {"head_sharing": "prefix"}
    old, new = supernets(TRIO.with_options(**options), with_expansion(0.25, 0.5, 0.75).with_options(**options))
    assert carry_over(old, new).inexact == ()
    assert all(same_logits(old, new, arch) for arch in some_archs(TRIO, 2).values())


@pytest.mark.parametrize(
    ("rule", "given", "target", "shape"),
    [
        (prefix, (2, 5), (4, 3), (2, 3)),
        (grouped_prefix(3), (6, 4), (9, 2), (6, 2)),
        (grouped_prefix(4, dims=(1,)), (3, 8), (2, 16), (2, 8)),
        (centre_crop, (2, 1, 5, 5), (3, 1, 3, 7), (2, 1, 3, 5)),
        (prefix, (), (), ()),
    ],
)
def test_entries_go_where_the_rule_finds_them(rule: SharingRule, given: Any, target: Any, shape: Any) -> None:
    source, weight = torch.randn(given), torch.zeros(target)
    copy_slice(source, weight, rule, Size(shape))
    assert torch.equal(rule(weight, Size(shape)), rule(source, Size(shape)))
    assert int(weight.count_nonzero()) == Size(shape).numel()


def test_only_choices_may_differ() -> None:
    with pytest.raises(UserError, match="weights of toy with img_size=16 do not fit toy with img_size=32"):
        carry_over(Supernet(toy_space()), Supernet(toy_space(img_size=32)))
    with pytest.raises(UserError, match="weights of toy do not fit alternatives: they are of different families"):
        carry_over(Supernet(toy_space()), Supernet(alternatives_space()))
