"""Arch: a value that reads like a record, hashes, and never changes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.space.arch import Arch


@pytest.fixture
def arch() -> Arch:
    return Arch(embed_dim=192, blocks=[{"num_heads": 3, "mlp_ratio": 3.5}, {"num_heads": 4, "mlp_ratio": 4.0}])


def test_attribute_and_mapping_access(arch: Arch) -> None:
    assert arch.embed_dim == arch["embed_dim"] == 192
    assert arch.blocks[1].num_heads == 4
    assert list(arch) == ["embed_dim", "blocks"]
    assert dict(arch) == {"embed_dim": 192, "blocks": arch.blocks}
    assert arch.get("depth", 12) == 12


def test_missing_attribute_names_the_fields(arch: Arch) -> None:
    with pytest.raises(AttributeError, match="no field 'depth', it has: embed_dim, blocks"):
        _ = arch.depth
    with pytest.raises(KeyError):
        arch["depth"]
    assert not hasattr(arch, "__array__")


def test_equality_ignores_order_and_number_type() -> None:
    a, b = Arch(x=4, y=(1, 2)), Arch(y=(1, 2), x=4.0)
    assert a == b
    assert hash(a) == hash(b)
    assert len({a, b}) == 1
    assert a != Arch(x=4, y=(2, 1))
    assert a != Arch(x=4)
    assert a != {"x": 4, "y": (1, 2)}


def test_nothing_can_be_changed(arch: Arch) -> None:
    with pytest.raises(AttributeError, match="cannot change"):
        arch.embed_dim = 240
    with pytest.raises(AttributeError, match="cannot change"):
        arch.depth = 12
    with pytest.raises(AttributeError, match="cannot change"):
        del arch.embed_dim
    with pytest.raises(TypeError):
        arch["embed_dim"] = 240  # type: ignore[index]
    assert isinstance(arch.blocks, tuple)


def test_later_changes_of_the_source_do_not_reach_the_arch() -> None:
    source: dict[str, Any] = {"blocks": [{"num_heads": 3}]}
    arch = Arch.from_dict(source)
    source["blocks"][0]["num_heads"] = 4
    source["blocks"].append({})
    source["extra"] = 1
    assert arch == Arch(blocks=(Arch(num_heads=3),))
    plain = arch.to_dict()
    plain["blocks"].clear()
    assert len(arch.blocks) == 1


def test_copies_are_equal_and_keep_order(arch: Arch) -> None:
    hash(arch)  # a cached hash must not travel: string hashes differ between processes
    for twin in (copy.copy(arch), copy.deepcopy(arch), pickle.loads(pickle.dumps(arch))):
        assert twin == arch
        assert hash(twin) == hash(arch)
        assert list(twin) == list(arch)
    assert pickle.loads(pickle.dumps(arch))._hash is None


def test_json(arch: Arch) -> None:
    text = '{"embed_dim":192,"blocks":[{"num_heads":3,"mlp_ratio":3.5},{"num_heads":4,"mlp_ratio":4.0}]}'
    assert arch.to_json() == text
    assert Arch.from_json(text) == arch
    assert type(Arch.from_json(text).blocks[1].mlp_ratio) is float


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "12"])
def test_bad_json_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="expected a JSON object") as caught:
        Arch.from_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, {1, 2}, object(), [None]])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(UserError, match="cannot hold"):
        Arch(field=value)


def test_repr_is_python(arch: Arch) -> None:
    assert eval(repr(arch)) == arch
    assert repr(Arch()) == "Arch()"


def test_an_arch_that_is_text_until_it_is_asked() -> None:
    fields = {"embed_dim": 192, "blocks": [{"num_heads": 3, "mlp_ratio": 4.0}, {"conv": {"kernel": 3}}]}
    late, arch = Arch.from_plain(fields), Arch.from_dict(fields)
    assert late.to_json() == arch.to_json()
    assert (late, hash(late), late.blocks[0].num_heads, late.to_dict()) == (arch, hash(arch), 3, fields)
    assert pickle.loads(pickle.dumps(Arch.from_plain(fields))) == arch


def test_equal_blocks_are_one_object_but_4_is_not_written_as_4_0() -> None:
    first, second, third = (Arch(blocks=[{"ratio": ratio}]) for ratio in (4, 4, 4.0))
    assert first.blocks[0] is second.blocks[0]
    assert third.to_json() == '{"blocks":[{"ratio":4.0}]}'
