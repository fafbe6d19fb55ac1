"""Other people's names of weights, turned into ours by a table of patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable


def rename(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """The name after every pattern, in turn, has been replaced.

    >>> rename("head.weight", [(r"^head\\.", "head.fc.")])
    'head.fc.weight'
    """
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name
