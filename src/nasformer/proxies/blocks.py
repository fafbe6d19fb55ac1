"""The blocks of a network: the modules named ``blocks.3`` or ``stages.1.blocks.3``, as we and timm name them."""

from __future__ import annotations

import re

from torch import nn

from nasformer.proxies.proxy import Inapplicable

_BLOCK = re.compile(r"(^|\.)blocks\.\d+$")


def is_block(name: str, module: nn.Module) -> bool:
    """Whether this is one of a numbered row of blocks.

    >>> [is_block(name, nn.Identity()) for name in ("blocks.3", "stages.1.blocks.3", "blocks.3.mlp", "blocks")]
    [True, True, False, False]
    """
    return _BLOCK.search(name) is not None


def require_blocks(model: nn.Module, least: int = 1) -> int:
    """The number of blocks; Inapplicable where there are fewer than the least."""
    count = sum(is_block(name, module) for name, module in model.named_modules())
    if count < least:
        raise Inapplicable(f"the model has {count} modules named blocks.<number>, and at least {least} are needed")
    return count
