"""nasformer finds, trains and ships the best vision backbone for your data and your budget."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from nasformer.families.timm_registry import install

__version__ = "0.1.0"

# Loaded on first use, so that `nasformer --help` does not wait for torch.
_HOMES = {
    "Arch": "space.arch",
    "AttentionMaps": "attention.maps",
    "Budget": "search.budget",
    "AugmentConfig": "data.options",
    "Profile": "latency.profile",
    "Recipe": "train.recipe",
    "Scorer": "proxies.scoring",
    "Space": "families.space",
    "Supernet": "supernet.supernet",
    "attention_maps": "attention.maps",
    "evaluate": "train.evaluate",
    "export_model": "export.bundle",
    "get_space": "families.registry",
    "list_spaces": "families.registry",
    "load_data": "data.sources",
    "load_model": "families.storage",
    "load_supernet": "supernet.storage",
    "make_profile": "latency.profiler",
    "save_model": "families.storage",
    "save_supernet": "supernet.storage",
    "score_model": "proxies.scoring",
    "search_supernet": "train.loop",
    "search_training_free": "runs.search_training_free",
    "train_model": "train.loop",
    "train_supernet": "train.loop",
}

__all__ = list(_HOMES)

install()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"nasformer has no attribute {name!r}")
    return getattr(import_module(f"nasformer.{_HOMES[name]}"), name)
