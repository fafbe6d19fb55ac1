"""Which operator each block of a net has, by stage: what nets with a OneOf in their blocks are told apart by.

Of a kind within a kind, such as an encoder with one of two feed-forward halves, the outer one is the operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nasformer.report.anatomy import Anatomy, Block, dissect
from nasformer.report.contents import Run
from nasformer.report.stages import THIRDS

Placed = dict[str, list[str]]
"""Stage -> the operators of its blocks, in the order of the net."""


def operator(block: Block) -> str:
    return block.kind.partition(" ")[0]


def operators(anatomies: Iterable[Anatomy]) -> list[str]:
    """The operators that occur, in the order in which they do; empty where blocks have no kinds.

    >>> operators([dissect({"blocks": [{"conv": {"kernel": 3}}, {"encoder": {"ffn": {"conv": {"kernel": 5}}}}]})])
    ['conv', 'encoder']
    """
    blocks = (block for anatomy in anatomies for stack in anatomy.stacks.values() for block in stack)
    return list(dict.fromkeys(operator(block) for block in blocks if block.kind))


def placed(anatomy: Anatomy) -> Placed:
    """The operators by stage; of a net that is a single stack, by thirds of its depth.

    >>> blocks = [{"conv": {"kernel": 3}}, {"local": {"window": 7}}]
    >>> placed(dissect({"stage1": {"dim": 8, "blocks": blocks}, "stage2": {"dim": 16, "blocks": blocks[:1]}}))
    {'stage 1': ['conv', 'local'], 'stage 2': ['conv']}
    >>> placed(dissect({"dim": 8, "blocks": [*blocks, *blocks]}))
    {'first third': ['conv', 'local'], 'middle third': ['conv'], 'last third': ['local']}
    """
    stacks = {
        stage_name(path): [operator(block) for block in stack]
        for path, stack in anatomy.stacks.items()
        if any(block.kind for block in stack)
    }
    if len(stacks) != 1:
        return stacks
    (blocks,) = stacks.values()
    thirds: Placed = {}
    for place, name in enumerate(blocks):
        thirds.setdefault(THIRDS[3 * place // len(blocks)], []).append(name)
    return thirds


def together(nets: Iterable[Placed]) -> Placed:
    """The operators of several nets, by stage."""
    found: Placed = {}
    for net in nets:
        for stage, names in net.items():
            found.setdefault(stage, []).extend(names)
    return found


def stage_name(path: str) -> str:
    """The path of a stack of blocks, as people say it.

    >>> stage_name("stage1.blocks"), stage_name("stages 2.blocks"), stage_name("encoder.blocks")
    ('stage 1', 'stage 2', 'encoder')
    """
    return re.sub(r"^stages? ?(\d+)$", r"stage \1", path.removesuffix(".blocks"))


def with_operators(run: Run) -> bool:
    """Whether the blocks of the run's winner chose among operators."""
    return run.winner is not None and bool(operators([dissect(run.winner.arch)]))
