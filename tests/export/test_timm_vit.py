"""Nets whose blocks are all alike, as timm's own ViT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tiny  # noqa: F401 - one thread, as for all small tensors
from families.small import randomise
from nasformer.export.bundle import export_model
from nasformer.models.base import Backbone
from nasformer.models.registry import get_space

SPACE = get_space("vit-cuts[embed_dim=32;blocks.depth=3;blocks.num_heads=0,1,2;blocks.hidden_dim=0,48,96]", img_size=16)


def net(*blocks: tuple[int, int], **options: object) -> Backbone:
    named = [{"num_heads": heads, "hidden_dim": hidden} for heads, hidden in blocks]
    space = SPACE.with_options(**options)
    return randomise(space.build(space.arch({"embed_dim": 32, "blocks": named}))).eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layer_scale": True, "qk_norm": True, "reg_tokens": 2, "no_embed_class": True, "activation": "quick_gelu"},
        {"class_token": False, "global_pool": "avg", "fc_norm": True, "final_norm": False, "pre_norm": True},
    ],
)
def test_a_net_whose_blocks_are_alike_is_exported_for_timm_itself(tmp_path: Path, options: dict[str, object]) -> None:
    model = net((2, 48), (0, 0), (2, 48), **options)
    exported = export_model(model, tmp_path / "net", formats=())
    assert exported.differences["timm.safetensors"] is not None
    assert exported.differences["timm.safetensors"] < 1e-5
    text, scope = (tmp_path / "net" / "README.md").read_text(), dict[str, object]()
    code = text.split("without nasformer")[1].split("```python")[1].split("```")[0]
    exec(code.replace("timm.safetensors", str(tmp_path / "net" / "timm.safetensors")), scope)
    x = torch.randn(2, 3, 16, 16)
    network = scope["network"]
    assert isinstance(network, torch.nn.Module)
    with torch.no_grad():
        assert torch.allclose(network.eval()(x), model(x), atol=1e-5)


def test_a_net_that_resizes_its_images_is_not() -> None:
    space = get_space("vit-cuts[img_size=16,32]")
    arch = space.arch({**space.root.largest().to_dict(), "img_size": 16})
    assert space.build(arch).to_timm() is None
    assert space.build(space.with_choices({"img_size": [32]}).root.largest()).to_timm() is None


@pytest.mark.parametrize("blocks", [((2, 48), (2, 96), (2, 48)), ((1, 48), (1, 48), (1, 48)), ((2, 0), (2, 0), (2, 0))])
def test_other_nets_are_not(tmp_path: Path, blocks: tuple[tuple[int, int], ...]) -> None:
    exported = export_model(net(*blocks), tmp_path / "net", formats=())
    assert "timm.safetensors" not in exported.differences
    assert not (tmp_path / "net" / "timm.safetensors").exists()
    assert "without nasformer" not in (tmp_path / "net" / "README.md").read_text()
