"""The built-in proxies by name, with what one must know of each; read from a file, so that listing needs no torch.

`python -m nasformer.proxies.catalogue` writes the file anew after a proxy has changed.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable
from importlib.resources import files

from nasformer.errors import UserError

FIELDS = ("formula", "sees", "loss", "init", "higher", "paper")
"""What is documented of each proxy; see `nasformer.proxies.proxy.Proxy`."""

_FILE = files("nasformer.proxies") / "catalogue.json"


def catalogue() -> dict[str, dict[str, str]]:
    """The documentation of every built-in proxy, in alphabetical order.

    >>> catalogue()["dss"]["loss"]
    'sum of the logits'
    """
    return json.loads(_FILE.read_text(encoding="utf-8"))


def parse_names(names: str | Iterable[str], available: Collection[str]) -> list[str]:
    """Names of proxies, given as a list or as text such as `dss,snip`, each once; UserError for an unknown one.

    >>> parse_names("dss, snip, dss", catalogue())
    ['dss', 'snip']
    >>> parse_names("dsss", catalogue())
    Traceback (most recent call last):
    nasformer.errors.UserError: unknown proxy 'dsss'; did you mean dss?
    """
    given = names.split(",") if isinstance(names, str) else names
    wanted = list(dict.fromkeys(name.strip() for name in given if name.strip()))
    if not wanted:
        raise UserError(f"name at least one proxy; there are: {', '.join(available)}")
    for name in wanted:
        if name not in available:
            close = difflib.get_close_matches(name, available, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(available)}"
            raise UserError(f"unknown proxy {name!r}; {hint}")
    return wanted


if __name__ == "__main__":
    from pathlib import Path

    from nasformer.proxies.proxy import list_proxies

    documented = {name: {field: getattr(proxy, field) for field in FIELDS} for name, proxy in list_proxies().items()}
    Path(str(_FILE)).write_text(json.dumps(documented, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
