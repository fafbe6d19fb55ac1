"""Mutation: the genes of an arch, their roles, and how likely evolution redraws them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from nasformer.errors import UserError
from nasformer.space.arch import Value

if TYPE_CHECKING:
    from nasformer.space.nodes import Node

# Genes and their roles: what an architecture decides, its form (topology) or how much of it there is (size).
#
# A gene is a Choice, the depth of a Repeat or the pick of a OneOf. Kernels and types of block are topology; depths,
# widths and ratios are size. A search can then move the genes of one role and leave the others as they are.

Role = Literal["topology", "size"]
ROLES: tuple[Role, ...] = get_args(Role)

Path = tuple[str | int, ...]


class Gene(NamedTuple):
    """One decision of an arch: its path in the arch, its role, and the value that was chosen."""

    path: Path
    role: Role
    value: Value
    is_pick: bool = False  # of a OneOf


def check_role(owner: str, role: str) -> None:
    if role not in ROLES:
        raise UserError(f"{owner} has the role {role!r}, allowed: {', '.join(map(repr, ROLES))}")


def genes(node: Node, arch: Value, role: Role) -> dict[Path, Value]:
    """The genes of one role by their paths: the topology of an arch, or its size.

    The pick of a OneOf is the name of its option, at the path of the OneOf; the depth of a Repeat is at the path of
    the Repeat.

    >>> from nasformer import Choice, OneOf, Repeat, Struct
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


# Mutation: how likely evolution redraws the parts of an architecture.


@dataclass(frozen=True)
class Mutation:
    """Probabilities to redraw the parts of an architecture.

    A redraw draws from all the choices, so it may give the same value again, as AutoFormer's code does.

    Args:
        depth: Probability to redraw the depth of each Repeat. Deeper appends freshly sampled items, shallower
            truncates.
        width: Probability to redraw each Choice, or each pick of a OneOf, that lies outside any Repeat. A redrawn
            pick brings freshly sampled contents.
        block: The same inside a Repeat.
        unit: What `block` applies to: with "gene" each Choice (or pick) of each item on its own, with "block"
            each item as a whole.
        role: Redraws only the genes of this role; all others stay as they are. A redrawn pick then keeps the fields
            of the old option that the new one has by the same name, as far as it allows their values, and draws the
            rest. A deeper Repeat copies its last item and redraws the genes of the role in the copies, so that no
            gene of the other role is invented (only a Repeat that was empty has nothing to copy, and samples).
    """

    depth: float
    width: float
    block: float
    unit: Literal["gene", "block"] = "gene"
    role: Role | None = None

    def __post_init__(self) -> None:
        for name in ("depth", "width", "block"):
            check_probability(name, getattr(self, name))
        if self.unit not in ("gene", "block"):
            raise UserError(f"mutation unit is {self.unit!r}, allowed: 'gene', 'block'")
        if self.role is not None:
            check_role("mutation", self.role)

    def moves(self, role: Role) -> bool:
        """Whether it redraws genes of this role at all."""
        return self.role is None or self.role == role

    @cached_property
    def inside_repeat(self) -> Mutation:
        """This mutation as the items of a Repeat see it: their choices are redrawn with probability `block`."""
        return replace(self, width=self.block)

    @cached_property
    def certain(self) -> Mutation:
        """This mutation with every probability at 1."""
        return replace(self, depth=1.0, width=1.0, block=1.0)


def check_probability(name: str, probability: float) -> None:
    if not 0 <= probability <= 1:
        raise UserError(f"mutation {name} is {probability}, expected a probability between 0 and 1")


# AutoFormer gives two sets of numbers. Its published code redraws each gene of a layer with probability 0.2, depth
# and embedding with 0.4; its paper has the two swapped: depth 0.2, each block 0.4.
MUTATIONS = {"code": Mutation(0.4, 0.4, 0.2, "gene"), "paper": Mutation(0.2, 0.2, 0.4, "block")}


def parse_mutation(text: str | Mutation) -> Mutation:
    """Reads the name of a preset, or numbers such as "depth=0.2,embed=0.4,gene=0.3".

    In AutoFormer's terms `depth` is P_d, `embed` P_e (any choice outside the blocks), and `gene` or `block` is P_m:
    `gene` redraws each gene of a block on its own, as AutoFormer's code does, `block` whole blocks, as its paper has
    it. What is not named stays as in the published code.

    >>> parse_mutation("paper")
    Mutation(depth=0.2, width=0.2, block=0.4, unit='block', role=None)
    >>> parse_mutation("depth=0.1,gene=0.3")
    Mutation(depth=0.1, width=0.4, block=0.3, unit='gene', role=None)
    """
    if isinstance(text, Mutation):
        return text
    if text in MUTATIONS:
        return MUTATIONS[text]
    chances = _read_numbers(text)
    if not chances or chances.keys() - {"depth", "embed", "gene", "block"} or {"gene", "block"} <= chances.keys():
        raise UserError(
            f"mutation is {text!r}, expected a Mutation or one of: {', '.join(MUTATIONS)}; or probabilities such as "
            "depth=0.2,embed=0.4,gene=0.3, where block in place of gene redraws whole blocks"
        )
    for name, probability in chances.items():
        check_probability(name, probability)
    code = MUTATIONS["code"]
    unit: Literal["gene", "block"] = "block" if "block" in chances else "gene"
    depth, width = chances.get("depth", code.depth), chances.get("embed", code.width)
    return Mutation(depth, width, chances.get(unit, code.block), unit)


def _read_numbers(text: str) -> dict[str, float]:
    """The numbers of "name=number,name=number" by name; none where one of them cannot be read."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(number) for name, _, number in pairs}
    except ValueError:
        return {}
