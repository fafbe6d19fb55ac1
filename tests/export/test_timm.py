"""Our models through timm's doors, and our own way of saving and loading."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch

import nasformer
from export.small import FAMILIES, small_model, small_of, varied_arch
from families.small import images
from nasformer.errors import UserError
from nasformer.families.pit import PiT
from nasformer.models import registry
from nasformer.models.base import Backbone
from nasformer.models.registry import BUILTIN_FAMILIES as OUR_FAMILIES
from nasformer.models.storage import load_model

USUAL_SIZE = (40, 24)
OTHER_SIZES = {"pit": (21, 19), "esformer": (48, 16), "trionet": (24, 17)}

each_family = pytest.mark.parametrize("family", FAMILIES)


def saved(family: str, folder: Path) -> Backbone:
    model = small_model(family)
    model.save_pretrained(folder, mean=[0.5, 0.4, 0.3], std=[0.1, 0.2, 0.3], classes=list("abcdefghij"))
    return model


def loaded_by_timm(folder: Path, **changes: object) -> Backbone:
    return timm.create_model(f"local-dir:{folder}", pretrained=True, **changes).eval()


def test_every_family_is_registered() -> None:
    assert tuple(sorted(OUR_FAMILIES)) == tuple(FAMILIES)
    assert {f"nasformer_{family}" for family in FAMILIES} <= set(timm.list_models("nasformer_*"))


@pytest.mark.filterwarnings("ignore:Overwriting nasformer_")
def test_families_are_registered_with_a_timm_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(timm.models._registry._model_entrypoints, "nasformer_pit")
    monkeypatch.delitem(registry._entry_points, "pit")
    assert not timm.is_model("nasformer_pit")
    registry.register_with_timm("pit")
    assert timm.is_model("nasformer_pit")


def test_families_are_registered_with_a_timm_imported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm.models, "_registry", None)
    monkeypatch.delitem(sys.modules, registry.TIMM_REGISTRY)
    monkeypatch.setattr(registry, "_entry_points", {})
    finders = list(sys.meta_path)
    registry.register_with_timm(*FAMILIES)
    timm_registry = importlib.import_module(registry.TIMM_REGISTRY)
    assert set(timm_registry.list_models()) == {f"nasformer_{family}" for family in FAMILIES}
    assert sys.meta_path == finders  # the hook has removed itself


@pytest.mark.slow
def test_a_process_may_import_timm_after_us() -> None:
    code = "import nasformer, timm\nassert timm.is_model('nasformer_pit'), timm.list_models('nasf*')"
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_us_imports_neither_torch_nor_timm() -> None:
    code = "import sys, nasformer\nassert not {'torch', 'timm', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@each_family
def test_timm_creates_a_model_from_an_arch(family: str) -> None:
    space, arch = small_of(family), varied_arch(family)
    options = {name: value for name, value in space.options.items() if name != "in_chans"}
    for source in (arch, arch.to_dict(), arch.to_json()):
        model = timm.create_model(f"nasformer_{family}", arch=source, drop_rate=0.0, **options)
        assert model.arch == arch
        assert model(images(space)).shape == (2, 10)
    assert model.pretrained_cfg["num_classes"] == 10
    assert tuple(model.pretrained_cfg["input_size"][1:]) == tuple(images(space).shape[2:])
    assert timm.data.resolve_model_data_config(model)["input_size"] == tuple(images(space).shape[1:])


def test_presets_and_spaces_by_name() -> None:
    model = timm.create_model("nasformer_pit", arch="pit-ti", img_size=32, patch_size=4, stride=4, num_classes=3)
    assert model.arch == nasformer.get_space("pit-tiny").presets["pit-ti"]
    assert model.num_classes == 3
    space = nasformer.get_space("autoformer-micro")
    model = timm.create_model("nasformer_autoformer", space="autoformer-micro", arch=space.sample(0), num_classes=7)
    assert model.options == {**space.build(space.sample(0)).options, "num_classes": 7}


WRONG = {
    "say which arch": {},
    "neither a JSON file nor inline JSON nor a preset": {"arch": "autoformer-xxl"},
    "this is no arch of autoformer": {"arch": {"depth": 3}},
    "has no option 'colour'": {"arch": "autoformer-t", "colour": "red"},
    "is a space of pit, not of autoformer": {"arch": "autoformer-t", "space": "pit-tiny"},
    "has no published weights": {"arch": "autoformer-t", "pretrained": True},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_timm_cannot_create_is_said(message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        timm.create_model("nasformer_autoformer", **WRONG[message])
    assert "\n" not in str(error.value)


@each_family
def test_timm_loads_our_folder(family: str, tmp_path: Path) -> None:
    model, x = saved(family, tmp_path), images(small_of(family))
    assert torch.equal(loaded_by_timm(tmp_path)(x), model(x))
    assert loaded_by_timm(tmp_path).pretrained_cfg["mean"] == (0.5, 0.4, 0.3)
    untrained = timm.create_model(f"local-dir:{tmp_path}").eval()
    assert untrained.arch == model.arch
    assert not torch.equal(untrained(x), model(x))
    other = loaded_by_timm(tmp_path, num_classes=4)
    assert other(x).shape == (2, 4)
    assert torch.equal(other.forward_features(x), model.forward_features(x))


@each_family
def test_timm_makes_feature_extractors(family: str, tmp_path: Path) -> None:
    model, x = saved(family, tmp_path), images(small_of(family))
    maps = model.forward_intermediates(x, intermediates_only=True)  # type: ignore[operator]
    count = min(4, len(maps))
    extractor = loaded_by_timm(tmp_path, features_only=True)
    assert extractor.feature_info.channels() == [one.shape[1] for one in maps[-count:]]
    for found, expected in zip(extractor(x), maps[-count:], strict=True):
        assert torch.equal(found, expected)
    (first,) = loaded_by_timm(tmp_path, features_only=True, out_indices=[0])(x)
    assert torch.equal(first, maps[0])


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_weights_for_other_than_three_channels(channels: int, tmp_path: Path) -> None:
    space = small_of("autoformer").with_options(in_chans=channels)
    model = space.build(space.root.smallest()).eval()
    model.save_pretrained(tmp_path)
    assert torch.equal(loaded_by_timm(tmp_path)(images(space)), model(images(space)))


# Another image size


@each_family
def test_weights_go_along_to_another_image_size(family: str, tmp_path: Path) -> None:
    model, size = saved(family, tmp_path), OTHER_SIZES.get(family, USUAL_SIZE)
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    expected = load_model(tmp_path)
    expected.set_input_size(size)
    fresh = type(model)(model.arch, **{**model.options, "img_size": size}).state_dict()
    assert {name: w.shape for name, w in expected.state_dict().items()} == {name: w.shape for name, w in fresh.items()}
    kept = {name: w for name, w in model.state_dict().items() if w.shape == fresh[name].shape}
    resampled = ("patch_embed.pos_embed", "attn.positions")  # tables of windows as large as the map
    assert all(name.endswith(resampled) for name in fresh.keys() - kept.keys())
    assert all(torch.equal(expected.state_dict()[name], w) for name, w in kept.items())
    for other in (
        load_model(tmp_path, img_size=size),
        type(model).from_pretrained(tmp_path, img_size=size),
        loaded_by_timm(tmp_path, img_size=size),
    ):
        assert tuple(other.options["img_size"]) == size
        assert torch.equal(other(x), expected(x))
    (found,) = loaded_by_timm(tmp_path, img_size=size, features_only=True, out_indices=[0])(x)
    assert torch.equal(found, expected.forward_intermediates(x, [0], intermediates_only=True)[0])  # type: ignore[operator]
    expected.save_pretrained(tmp_path / "larger")
    assert torch.equal(load_model(tmp_path / "larger")(x), expected(x))


@pytest.mark.parametrize("family", ["autoformer", "pit"])
def test_positions_are_resampled_smoothly(family: str, tmp_path: Path) -> None:
    """A table that grows from left to right still does, and the class token's own row stays."""
    model = small_model(family)
    stem = model.patch_embed
    rows, columns = stem.grid  # type: ignore[union-attr,misc]
    ramp = torch.linspace(0, 1, int(columns)).repeat(int(rows))
    table: torch.Tensor = stem.pos_embed.data  # type: ignore[union-attr,assignment]
    table[:, -len(ramp) :] = ramp[None, :, None]
    model.save_pretrained(tmp_path)
    wider = load_model(tmp_path, img_size=OTHER_SIZES.get(family, USUAL_SIZE))
    found: torch.Tensor = wider.patch_embed.pos_embed.data  # type: ignore[union-attr,assignment]
    grid: tuple[int, int] = wider.patch_embed.grid  # type: ignore[union-attr,assignment]
    patches = found[0, -grid[0] * grid[1] :].unflatten(0, grid)
    torch.testing.assert_close(patches, patches[:1].expand_as(patches), rtol=0, atol=1e-5)
    assert (patches[0].diff(dim=0) > 0).all()
    before, after = table[0, : -len(ramp)], found[0, : -grid[0] * grid[1]]
    assert torch.equal(before, after)


# Without timm


@each_family
def test_save_and_load_as_hubs_do(family: str, tmp_path: Path) -> None:
    model, x = saved(family, tmp_path), images(small_of(family))
    for cls in (type(model), Backbone):
        again = cls.from_pretrained(tmp_path)
        assert type(again) is type(model)
        assert not again.training
        assert torch.equal(again(x), model(x))
    assert Backbone.from_pretrained(tmp_path, num_classes=3)(x).shape == (2, 3)


def test_a_hub_id_is_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder someone/some-model; if it is on a hub, download it first"):
        Backbone.from_pretrained("someone/some-model")
    saved("autoformer", tmp_path)
    with pytest.raises(UserError, match="holds a model of the family autoformer, not of pit"):
        PiT.from_pretrained(tmp_path)
