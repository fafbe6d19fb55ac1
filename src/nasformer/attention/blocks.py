"""The blocks of a model as papers count them: "3.7" is block 7 of stage 3, "7" the seventh of a net without stages."""

from __future__ import annotations

import re

from torch import nn

from nasformer.attention.places import KINDS
from nasformer.errors import UserError
from nasformer.families.backbone import Backbone


def attention_blocks(model: Backbone) -> list[str]:
    """The blocks that have attention, in the order of the net.

    >>> import nasformer
    >>> space = nasformer.get_space("s3-micro")
    >>> attention_blocks(space.build(space.root.smallest()))
    ['1.1', '2.1', '3.1', '4.1']
    """
    return [block for block, name in numbered_blocks(model).items() if attention_layers(model.get_submodule(name))]


def numbered_blocks(model: Backbone) -> dict[str, str]:
    """All blocks: the name of the segment by its number."""
    return {number(name): name for name in model.segment_names if re.search(r"\bblocks\.\d+$", name)}


def number(name: str) -> str:
    """What people call a block.

    >>> number("stages.2.blocks.6"), number("blocks.6")
    ('3.7', '7')
    """
    return ".".join(str(int(part) + 1) for part in name.split(".") if part.isdigit())


def attention_layers(block: nn.Module) -> dict[str, nn.Module]:
    """The layers of a block that attend, by name: one, or two of axial attention."""
    return {name.rpartition(".")[2]: layer for name, layer in block.named_modules() if isinstance(layer, KINDS)}


def find_block(model: Backbone, block: str) -> str:
    """The name of the segment that is meant; it has attention."""
    numbered, known = numbered_blocks(model), attention_blocks(model)
    if block in known:
        return numbered[block]
    if not known:
        raise UserError("no block of this model has attention; give a model with attention")
    what = "has no attention" if block in numbered else "does not exist"
    raise UserError(f"block {block!r} {what}; these have: {', '.join(known)}")
