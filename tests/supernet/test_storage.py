"""Supernets on disk: our own, AutoFormer's published ones, and files that are not what they should be."""

from __future__ import annotations

import argparse
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from families.small import golden, golden_path, images, randomise
from nasformer.errors import UserError
from nasformer.families.autoformer import AutoFormer, declare
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.supernet.storage import load_supernet, save_supernet
from nasformer.supernet.supernet import Supernet
from supernet.toy import toy_space, toy_supernet


def micro_supernet(**options: Any) -> Supernet:
    return randomise(Supernet(get_space("autoformer-micro", **options))).eval()


def weights_of(supernet: Supernet) -> dict[str, Tensor]:
    return supernet.weights.state_dict()


def assert_same_weights(found: Supernet, expected: Supernet) -> None:
    theirs = weights_of(expected)
    assert weights_of(found).keys() == theirs.keys()
    assert not [name for name, weight in weights_of(found).items() if not torch.equal(weight, theirs[name])]


def saved(path: Path, state: Mapping[str, Any]) -> Path:
    """A file of weights in the format that its name says."""
    if path.suffix == ".safetensors":
        save_file({name: weight.contiguous() for name, weight in state.items()}, path)
    else:
        torch.save(state, path)
    return path


# Our own folders and files


def test_folder_round_trip(tmp_path: Path) -> None:
    supernet = micro_supernet(img_size=(16, 32), num_classes=7)
    save_supernet(supernet, tmp_path / "supernet")
    loaded = load_supernet(tmp_path / "supernet").eval()
    assert loaded.space == supernet.space
    assert_same_weights(loaded, supernet)
    x, arch = images(supernet.space), supernet.space.sample(seed=2)
    assert torch.equal(loaded(x, arch), supernet(x, arch))
    assert_same_weights(load_supernet(str(tmp_path / "supernet"), expected=supernet.space), supernet)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth"])
def test_file_round_trip(name: str, tmp_path: Path) -> None:
    supernet = toy_supernet()
    assert_same_weights(load_supernet(saved(tmp_path / name, weights_of(supernet)), supernet.space), supernet)


def test_other_space_is_refused(tmp_path: Path) -> None:
    save_supernet(micro_supernet(), tmp_path)
    with pytest.raises(UserError, match="holds a supernet of autoformer-micro, not of autoformer-tiny"):
        load_supernet(tmp_path, expected=get_space("autoformer-tiny"))


def test_file_needs_a_space(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not say which space"):
        load_supernet(saved(tmp_path / "weights.pth", weights_of(toy_supernet())))


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "none.pth"))):
        load_supernet(tmp_path / "none.pth", toy_space())
    with pytest.raises(UserError, match=r"supernet\.json is missing"):
        load_supernet(tmp_path)


def test_missing_weight_is_named(tmp_path: Path) -> None:
    state = weights_of(toy_supernet())
    del state["blocks.3.attn.proj.bias"]
    with pytest.raises(UserError, match=r"has no weight blocks\.3\.attn\.proj\.bias"):
        load_supernet(saved(tmp_path / "weights.safetensors", state), toy_space())


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({"num_classes": 9}, "head.fc.weight is [10, 48], toy needs [9, 48]"),
        ({"num_classes": 11}, "head.fc.weight is [10, 48], toy needs [11, 48]"),
        ({"img_size": 12}, "patch_embed.pos_embed is [1, 17, 48], toy needs [1, 10, 48]"),
        ({"img_size": 20}, "patch_embed.pos_embed is [1, 17, 48], toy needs [1, 26, 48]"),
        ({"in_chans": 1}, "patch_embed.proj.weight is [48, 3, 4, 4], toy needs [48, 1, 4, 4]"),
        ({"max_relative_position": 5}, "attn.rel_pos_k.vertical is [30, 8], toy needs [12, 8]"),
        ({"head_dim": 12}, "attn.qkv.weight is [72, 48], toy needs [108, 48]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_options_are_refused(options: dict[str, Any], weight: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.safetensors", weights_of(toy_supernet()))
    with pytest.raises(UserError, match=re.escape(weight)):
        load_supernet(path, toy_space(**options))


def test_narrower_weights_are_refused(tmp_path: Path) -> None:
    state = weights_of(toy_supernet())
    state["blocks.1.mlp.fc1.weight"] = state["blocks.1.mlp.fc1.weight"][:-8]
    with pytest.raises(UserError, match=r"blocks\.1\.mlp\.fc1\.weight is \[136, 48\], toy needs \[144, 48\]"):
        load_supernet(saved(tmp_path / "weights.safetensors", state), toy_space())


@pytest.mark.parametrize("sharing", ["by_head", "contiguous"])
def test_wider_weights_are_cut_as_subnets_are(sharing: str, tmp_path: Path) -> None:
    options = dict(toy_space(qkv_bias_sharing=sharing).options)
    wide = Space("wide", AutoFormer, declare((32, 40, 48, 56), (1, 2, 3, 4), (2.0, 3.0, 4.0), (2, 3, 4, 5)), options)
    narrow = toy_space(qkv_bias_sharing=sharing)
    whole = randomise(Supernet(wide)).eval()
    cut = load_supernet(saved(tmp_path / "weights.safetensors", weights_of(whole)), narrow).eval()
    x = images(narrow)
    for seed in range(4):
        arch = narrow.sample(seed)
        assert torch.equal(cut(x, arch), whole(x, arch))


# Damaged and hostile files


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth"])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_truncated_file(name: str, part: float, tmp_path: Path) -> None:
    path = saved(tmp_path / name, weights_of(toy_supernet()))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(UserError, match="cannot be read as weights"):
        load_supernet(path, toy_space())


def test_truncated_folder(tmp_path: Path) -> None:
    save_supernet(micro_supernet(), tmp_path)
    weights = tmp_path / "supernet.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot be read as weights"):
        load_supernet(tmp_path)


@pytest.mark.parametrize("content", [torch.zeros(2), [1, 2], {"model": [1]}, {"model": {"norm.weight": 3}}, {}])
def test_file_without_weights(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(UserError, match=r"expected weights by name|has no weight"):
        load_supernet(tmp_path / "weights.pth", toy_space())


class MakesFolder:
    """Unpickled the careless way, it runs code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("plain_pickle", [False, True])
def test_code_in_a_file_is_not_run(plain_pickle: bool, tmp_path: Path) -> None:
    trap = MakesFolder(tmp_path / "trapped")
    pickle.loads(pickle.dumps(trap))
    assert trap.folder.is_dir()  # it would work
    trap.folder.rmdir()
    path = tmp_path / "weights.pth"
    if plain_pickle:
        path.write_bytes(pickle.dumps({"model": trap}, protocol=2))
    else:
        torch.save({"model": weights_of(toy_supernet()), "args": trap}, path)
    with pytest.raises(UserError, match="cannot be read as weights"):
        load_supernet(path, toy_space())
    assert not trap.folder.exists()


# AutoFormer's published layout

THEIR_BLOCK = {
    "norm1": "attn_layer_norm",
    "norm2": "ffn_layer_norm",
    "attn.qkv": "attn.qkv",
    "attn.proj": "attn.proj",
    "mlp.fc1": "fc1",
    "mlp.fc2": "fc2",
}
THEIR_TABLES = {
    f"attn.rel_pos_{side}.{ours}": f"attn.rel_pos_embed_{side}.embeddings_table_{theirs}"
    for side in "kv"
    for ours, theirs in (("vertical", "v"), ("horizontal", "h"))
}


def their_name(name: str) -> str:
    if match := re.fullmatch(r"(blocks\.\d+)\.(.+)", name):
        block, rest = match.groups()
        layer, _, kind = rest.rpartition(".")
        return f"{block}.{THEIR_TABLES.get(rest) or f'{THEIR_BLOCK[layer]}.{kind}'}"
    for ours, theirs in (("patch_embed.proj", "patch_embed_super.proj"), ("head.fc", "head"), ("patch_embed.", "")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def interleaved(weight: Tensor) -> Tensor:
    """Row 0 of q, of k, of v, then row 1 of q, of k, of v ..."""
    return weight.unflatten(0, (3, -1)).transpose(0, 1).flatten(0, 1)


def official_state(supernet: Supernet) -> dict[str, Tensor]:
    return {
        their_name(name): interleaved(weight) if name.endswith("qkv.weight") else weight
        for name, weight in weights_of(supernet).items()
    }


def test_official_layout_is_read(tmp_path: Path) -> None:
    supernet = toy_supernet(qkv_bias_sharing="contiguous")
    state = official_state(supernet)
    assert {"patch_embed_super.proj.bias", "cls_token", "pos_embed", "norm.weight", "head.bias"} <= set(state)
    path = saved(tmp_path / "supernet.safetensors", state)
    loaded = load_supernet(path, toy_space()).eval()
    assert loaded.space.options == supernet.space.options  # which slice the bias as their code does
    assert_same_weights(loaded, supernet)


def test_official_slices_are_ours(tmp_path: Path) -> None:
    """Their code takes every third row up to 3 x width, and the first entries of the bias."""
    state = official_state(toy_supernet())
    loaded = load_supernet(saved(tmp_path / "supernet.safetensors", state), toy_space())
    for seed in range(3):
        arch = loaded.space.sample(seed)
        slices = loaded.slices(arch)
        for index, block in enumerate(arch.blocks):
            name, width = f"blocks.{index}.attn.qkv", 8 * block.num_heads
            rows = torch.cat([state[f"{name}.weight"][part : 3 * width : 3, : arch.embed_dim] for part in range(3)])
            assert torch.equal(slices[f"{name}.weight"], rows)
            assert torch.equal(slices[f"{name}.bias"], state[f"{name}.bias"][: 3 * width])


def test_published_checkpoint_with_its_command_line(tmp_path: Path) -> None:
    supernet = toy_supernet(qkv_bias_sharing="contiguous")
    arguments = argparse.Namespace(
        lr=5e-4, mode="super", gp=True, output_dir=Path("out"), data_path=None, opt_betas=[0.9]
    )
    content = {"model": official_state(supernet), "args": arguments, "epoch": 499, "optimizer": {"state": {}}}
    torch.save(content, tmp_path / "supernet-tiny.pth")
    assert_same_weights(load_supernet(tmp_path / "supernet-tiny.pth", toy_space()), supernet)


# Numbers that the published implementation gives

GOLDEN = Space(
    "golden",
    AutoFormer,
    declare((64, 96, 128), (1, 2), (2.0, 3.0, 3.5, 4.0), (2, 3)),
    {"img_size": 32, "patch_size": 8, "num_classes": 10, "super_depth": 3},
)


def golden_cases() -> list[tuple[Arch, int, Tensor]]:
    """Arch, parameter count and logits of each case."""
    rows = golden("autoformer_cases.json")["subnets"]
    tensors = load_file(golden_path("autoformer_cases.safetensors"))
    assert rows
    return [(GOLDEN.arch(row["arch"]), row["params"], tensors[f"logits.{i}"]) for i, row in enumerate(rows)]


def golden_input() -> Tensor:
    return load_file(golden_path("autoformer_cases.safetensors"))["input"]


def golden_supernet() -> Supernet:
    return load_supernet(golden_path("autoformer_official.safetensors"), GOLDEN).eval()


def test_published_implementation_gives_the_same_logits() -> None:
    supernet, x = golden_supernet(), golden_input()
    for arch, params, logits in golden_cases():
        assert supernet.space.cost(arch).params == params
        torch.testing.assert_close(supernet(x, arch), logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(supernet.extract(arch)(x), logits, rtol=1e-5, atol=1e-5)


def test_sound_bias_rule_differs_from_the_published_one_where_heads_are_fewer() -> None:
    published, x = golden_supernet(), golden_input()
    sound = Supernet(GOLDEN).eval()
    sound.load_state_dict(published.state_dict())
    for arch, _, logits in golden_cases():
        fewer_heads = any(block.num_heads < 2 for block in arch.blocks)
        assert torch.allclose(sound(x, arch), logits, rtol=1e-5, atol=1e-5) != fewer_heads
