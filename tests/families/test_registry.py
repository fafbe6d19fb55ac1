"""The registry: built-in spaces without torch, families of plugins, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from families.small import FAMILIES, each_space, images
from nasformer.errors import UserError
from nasformer.families.autoformer import AutoFormer, declare
from nasformer.models import registry
from nasformer.models.registry import (
    BUILTIN_FAMILIES,
    SpaceEntry,
    catalogue,
    get_family,
    get_space,
    list_families,
    list_spaces,
    register_family,
    register_space,
)
from nasformer.models.space import Space
from nasformer.models.storage import load_model, save_model
from nasformer.space.dimensions import dimensions

ROOT = declare((8, 16), (1, 2), (2.0,), (1, 2))
OPTIONS = {"img_size": 8, "patch_size": 4, "head_dim": 8, "num_classes": 10}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Space:
    """A space of a new family, registered for the time of a test."""
    list_spaces()  # or the built-in families would register themselves into the copies
    monkeypatch.setattr(registry, "_spaces", dict(registry._spaces))
    monkeypatch.setattr(registry, "_families", dict(registry._families))

    @register_family
    class MyFormer(AutoFormer):
        family = "myformer"

    space = Space("myformer-tiny", MyFormer, ROOT, OPTIONS, about="for tests")
    register_space(space)
    return space


# The built-in families


def test_built_in_families_come_first() -> None:
    assert tuple(list_families())[: len(BUILTIN_FAMILIES)] == BUILTIN_FAMILIES
    assert get_family("pit") is list_spaces()["pit-tiny"].model
    families = [space.model.family for space in list_spaces().values()]
    assert list(dict.fromkeys(families)) == list(list_families())


def test_the_catalogue_is_that_of_the_registry() -> None:
    """If this fails, run: make catalogue"""
    assert catalogue() == [SpaceEntry.of(space) for space in list_spaces().values()]


def test_the_catalogue_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from nasformer.models import registry\n"
        "from nasformer.models.registry import catalogue\n"
        "assert len(catalogue()) > 10\n"
        "assert not {'torch', 'timm', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("find", "name", "message"),
    [
        (get_space, "autofromer-tiny", "unknown space 'autofromer-tiny'; did you mean autoformer-tiny?"),
        (get_space, "xyz", "unknown space 'xyz'; there are: autoformer-tiny, "),
        (get_family, "trinet", "unknown family 'trinet'; did you mean trionet?"),
    ],
)
def test_unknown_names_are_refused(find: Any, name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        find(name)
    assert str(error.value).startswith(message)


# Plugins


def test_a_plugin_is_known_like_a_built_in_family(plugin: Space, tmp_path: Path) -> None:
    assert get_space("myformer-tiny") is not None
    assert list(list_spaces())[-1] == "myformer-tiny"
    assert list(list_families())[-1] == "myformer"
    assert get_family("myformer") is plugin.model
    assert get_space("myformer-tiny[embed_dim=8]").root.cardinality == plugin.root.cardinality // 2
    assert catalogue()[-1] == SpaceEntry("myformer-tiny", "myformer", "for tests", plugin.root.cardinality)


def test_models_of_a_plugin_are_saved_loaded_and_made_by_timm(plugin: Space, tmp_path: Path) -> None:
    model, x = plugin.build(plugin.sample()).eval(), images(plugin)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert type(loaded) is plugin.model
    assert torch.equal(loaded(x), model(x))
    made = timm.create_model("nasformer_myformer", arch="largest", space="myformer-tiny")
    assert type(made) is plugin.model
    assert made.arch == plugin.root.largest()
    assert torch.equal(timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()(x), model(x))


def test_the_same_object_may_be_registered_twice_another_one_may_not(plugin: Space) -> None:
    register_space(plugin)
    with pytest.raises(UserError, match="there is another space named 'myformer-tiny' already"):
        register_space(replace(plugin, about="other"))

    class Other(AutoFormer):
        family = "autoformer"

    with pytest.raises(UserError, match="there is another family named 'autoformer' already"):
        register_family(Other)
    with pytest.raises(UserError, match="there is another family named 'autoformer' already"):
        register_space(Space("other", Other, ROOT, OPTIONS))
    assert "other" not in list_spaces()


def test_a_family_without_a_space_says_so_to_timm(plugin: Space) -> None:
    @register_family
    class Spaceless(AutoFormer):
        family = "spaceless"

    with pytest.raises(UserError, match="the family spaceless has no space; register one with register_space"):
        timm.create_model("nasformer_spaceless", arch="largest")


# Archs by name, and what a space prints


@each_space
def test_the_smallest_and_the_largest_arch_have_names(space: Space) -> None:
    assert space.arch("smallest") == space.root.smallest()
    assert space.arch("largest") == space.root.largest()


def test_a_preset_named_largest_comes_first() -> None:
    space = FAMILIES["autoformer"]
    preset = space.root.smallest()
    assert replace(space, presets={"largest": preset}).arch("largest") == preset
    with pytest.raises(UserError, match=r"nor a preset of autoformer-micro \(.*, smallest, largest\)"):
        space.arch("larger")


@each_space
def test_repr_is_short_and_html_has_all_dimensions(space: Space) -> None:
    assert repr(space).startswith(f"Space('{space.name}', ")
    assert len(repr(space)) < 100
    html = space._repr_html_()
    assert all(f"<td>{name}</td>" in html for name in dimensions(space.root))
    assert "M parameters" in html


def test_repr_of_a_space_that_cannot_be_built_leaves_sizes_out() -> None:
    assert repr(get_space("autoformer-micro", img_size=33)) == "Space('autoformer-micro', 1.79e+6 archs)"


def test_html_is_escaped() -> None:
    html = replace(FAMILIES["autoformer"], name="<script>", about="a & b")._repr_html_()
    assert "<script>" not in html
    assert "<b>&lt;script&gt;</b>: a &amp; b" in html
