"""Catalogue of all proxies, readable without importing torch.

It is a JSON file that `python -m nasformer.proxies.catalogue` writes from the registry, whenever a built-in proxy
changes.
"""

from __future__ import annotations

from nasformer.proxies.registry import CATALOGUE, Proxy, list_proxies, registered_proxies
from nasformer.utils.files import read_json, write_json

FIELDS = ("formula", "sees", "loss", "init", "higher", "paper")


def catalogue() -> dict[str, dict[str, str]]:
    """The documentation of each built-in proxy, then of each proxy that a plugin has registered so far.

    >>> catalogue()["dss"]["loss"]
    'sum of the logits'
    """
    builtin = read_json(CATALOGUE)
    registered = registered_proxies().items()
    return builtin | {name: _entry(proxy) for name, proxy in registered if name not in builtin}


def _entry(proxy: Proxy) -> dict[str, str]:
    return {field: getattr(proxy, field) for field in FIELDS}


def write_catalogue() -> None:
    """Writes the built-in proxies into the catalogue."""
    write_json(CATALOGUE, {name: _entry(proxy) for name, proxy in list_proxies().items()})


if __name__ == "__main__":
    write_catalogue()
