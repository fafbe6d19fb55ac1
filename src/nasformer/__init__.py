"""nasformer finds, trains and ships the best vision backbone for your data and your budget."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from nasformer.timm_plugin import install

__version__ = "0.1.0"

# Loaded on first use, so that `nasformer --help` does not wait for torch.
_HOMES = {
    "Arch": "space",
    "AttentionMaps": "attention",
    "Budget": "search",
    "AugmentConfig": "recipe",
    "Profile": "latency.profile",
    "Recipe": "recipe",
    "Scorer": "proxies.scoring",
    "Space": "families",
    "Supernet": "supernet",
    "attention_maps": "attention",
    "evaluate": "train",
    "export_model": "export",
    "get_space": "families",
    "list_spaces": "families",
    "load_data": "data",
    "load_model": "export",
    "load_supernet": "supernet",
    "make_profile": "latency.survey",
    "save_model": "export",
    "save_supernet": "supernet",
    "score_model": "proxies.scoring",
    "search_supernet": "train",
    "search_training_free": "proxies.search",
    "train_model": "train",
    "train_supernet": "train",
}

__all__ = list(_HOMES)

install()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"nasformer has no attribute {name!r}")
    return getattr(import_module(f"nasformer.{_HOMES[name]}"), name)
