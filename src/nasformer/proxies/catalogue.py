"""Catalogue of all proxies, readable without importing torch.

It is a JSON file that `python -m nasformer.proxies.catalogue` writes from the registry, whenever a built-in proxy
changes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from nasformer.proxies.registry import CATALOGUE, Proxy, list_proxies, parse_names, registered_proxies
from nasformer.utils.files import read_json, write_json


@dataclass(frozen=True)
class ProxyEntry:
    """What the list of proxies says of one of them; see `Proxy`."""

    formula: str
    sees: str
    loss: str
    init: str
    higher: str
    paper: str

    @classmethod
    def of(cls, proxy: Proxy) -> ProxyEntry:
        return cls(*(getattr(proxy, field.name) for field in fields(cls)))

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def catalogue(names: str | None = None) -> dict[str, ProxyEntry]:
    """An entry for each built-in proxy, then for each proxy that a plugin has registered so far, or for some by name.

    >>> catalogue("dss")["dss"].loss
    'sum of the logits'
    """
    entries = {name: ProxyEntry(**entry) for name, entry in read_json(CATALOGUE).items()}
    for name, proxy in registered_proxies().items():
        entries.setdefault(name, ProxyEntry.of(proxy))
    return {name: entries[name] for name in parse_names(names, entries)} if names else entries


def write_catalogue() -> None:
    """Writes the built-in proxies into the catalogue."""
    write_json(CATALOGUE, {name: ProxyEntry.of(proxy).to_dict() for name, proxy in list_proxies().items()})


if __name__ == "__main__":
    write_catalogue()
