"""Genes and their roles: what an architecture decides, its form (topology) or how much of it there is (size).

A gene is a Choice, the depth of a Repeat or the pick of a OneOf. Kernels and types of block are topology; depths,
widths and ratios are size. A search can then move the genes of one role and leave the others as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from nasformer.errors import UserError
from nasformer.space.arch import Value

if TYPE_CHECKING:
    from nasformer.space.node import Node


Role = Literal["topology", "size"]
ROLES: tuple[Role, ...] = get_args(Role)

Path = tuple[str | int, ...]


class Gene(NamedTuple):
    """One decision of an arch: its path in the arch, its role, and the value that was chosen."""

    path: Path
    role: Role
    value: Value


def check_role(owner: str, role: str) -> None:
    if role not in ROLES:
        raise UserError(f"{owner} has the role {role!r}, allowed: {', '.join(map(repr, ROLES))}")


def genes(node: Node, arch: Value, role: Role) -> dict[Path, Value]:
    """The genes of one role by their paths: the topology of an arch, or its size.

    The pick of a OneOf is the name of its option, at the path of the OneOf; the depth of a Repeat is at the path of
    the Repeat.

    >>> from nasformer.space import Choice, OneOf, Repeat, Struct
    >>> block = OneOf(conv=Struct(kernel=Choice(3, 5, role="topology"), width=Choice(1, 2)), pool=Struct())
    >>> net = Struct(blocks=Repeat(block, depth=Choice(1, 2)))
    >>> arch = net.validate({"blocks": [{"conv": {"kernel": 5, "width": 2}}]})
    >>> genes(net, arch, "topology")
    {('blocks', 0): 'conv', ('blocks', 0, 'conv', 'kernel'): 5}
    >>> genes(net, arch, "size")
    {('blocks',): 1, ('blocks', 0, 'conv', 'width'): 2}
    """
    return {gene.path: gene.value for gene in node.genes(arch) if gene.role == role}


def same_role(node: Node, a: Value, b: Value, role: Role) -> bool:
    """Whether two archs agree in every gene of the role that both of them have."""
    genes_a, genes_b = genes(node, a, role), genes(node, b, role)
    return all(genes_a[path] == genes_b[path] for path in genes_a.keys() & genes_b.keys())
