"""What tests of runs share: a small pretrained net."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from nasformer.data.options import AugmentOptions
from nasformer.data.sources import load_data
from nasformer.models.registry import get_space
from nasformer.models.storage import save_model
from nasformer.train.evaluate import evaluate
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe

PLAIN = AugmentOptions(crop="none", hflip=0.0)
NAME = "vit-cuts[embed_dim=32;blocks.depth=2;blocks.num_heads=0,1,2;blocks.hidden_dim=0,64,128]"


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ViT that knows digits, as a model folder."""
    space, data = get_space(NAME, img_size=8, patch_size=2, in_chans=1, num_classes=10), load_data("digits")
    torch.manual_seed(0)
    model = space.build(space.root.largest())
    for weight in (weight for weight in model.parameters() if weight.ndim > 1):
        nn.init.trunc_normal_(weight, std=0.15)
    train_model(model, data, Recipe(epochs=6, lr=3e-3, batch_size=64, augment=PLAIN), quiet=True)
    assert evaluate(model, data, "holdout")["accuracy"] > 0.8
    return save_model(model, tmp_path_factory.mktemp("source") / "vit", classes=data.classes)
