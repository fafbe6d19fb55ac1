"""Node: what every part of a space can do. A space is a tree of nodes; a member of it is one immutable value.

`sample` is the one walk that builds a member. The smallest and the largest member are the same walk with a random
number generator that always draws the first or the last position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

from nasformer.errors import UserError
from nasformer.space.arch import Arch, Value

if TYPE_CHECKING:
    from nasformer.space.nodes import Choice


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


class Rng(Protocol):
    """What sampling asks of a random number generator; a `random.Random` is one."""

    def randrange(self, stop: int, /) -> int: ...


class _First:
    def randrange(self, stop: int, /) -> int:
        return 0


class _Last:
    def randrange(self, stop: int, /) -> int:
        return stop - 1


FIRST, LAST = _First(), _Last()


class Node(ABC):
    """A set of values, with the moves that search needs.

    `value`, `a`, `b` and `given` are always members of the node, as `validate` or `sample` return them.
    """

    cardinality: int  # how many members there are, exactly
    code_length: int  # how many numbers `encode` gives, the same for all members

    @abstractmethod
    def sample(self, rng: Rng, given: Value = None) -> Value:
        """A random member; with `given`, one that takes the same option as `given` in every OneOf."""

    def smallest(self, given: Value = None) -> Value:
        """The member that takes the first of everything; `given` as in `sample`."""
        return self.sample(FIRST, given)

    def largest(self, given: Value = None) -> Value:
        """The member that takes the last of everything; `given` as in `sample`."""
        return self.sample(LAST, given)

    @abstractmethod
    def deepest(self) -> Node:
        """The same space, but every Repeat has its largest depth; those that a rule ties to others stay as they are.

        A member of it has an item, and so an operator, at every path that any member has.
        """

    @abstractmethod
    def enumerate(self) -> Iterator[Value]:
        """All members, each once. Lazy: it is fine to take a few from a huge space."""

    @abstractmethod
    def validate(self, value: Value, path: str = "arch") -> Value:
        """The member that `value` (an Arch, or plain dicts and lists) means; UserError when it is none.

        `path` says in the error which part of the arch the value is.
        """

    def contains(self, value: Value) -> bool:
        """Whether `validate` accepts the value."""
        try:
            self.validate(value)
        except UserError:
            return False
        return True

    @abstractmethod
    def encode(self, value: Value) -> list[float]:
        """The member as numbers: positions among the choices, and -1 for the parts that it does not have."""

    def decode(self, vector: Sequence[float]) -> Value:
        """The member that a vector stands for. Rounds and clips, so any numbers give a valid member."""
        if len(vector) != self.code_length:
            raise UserError(f"the vector has {len(vector)} numbers, expected {self.code_length}")
        return self._decode(vector)

    @abstractmethod
    def _decode(self, vector: Sequence[float]) -> Value: ...

    @abstractmethod
    def mutate(self, value: Value, rng: Random, mutation: Mutation) -> Value:
        """The member with some parts redrawn; see `Mutation` for the probabilities."""

    @abstractmethod
    def cross(self, a: Value, b: Value, rng: Random) -> Value:
        """A child of two members, which takes each part from one of them at random."""

    @abstractmethod
    def neighbours(self, value: Value, fresh: Rng = FIRST) -> Iterator[Value]:
        """All members one step away: one Choice or depth moved by one position, or one OneOf option replaced.

        Parts that a step adds are drawn with `fresh`: the smallest by default.
        """

    @abstractmethod
    def picks(self, value: Value, path: Path = ()) -> Iterator[tuple[Path, str]]:
        """Which option each OneOf in the member takes: pairs of its path and the option's name."""

    @abstractmethod
    def genes(self, value: Value, path: Path = ()) -> Iterator[Gene]:
        """Everything that was decided in the member: choices, depths and picks, with their roles."""

    @abstractmethod
    def roles(self) -> set[Role]:
        """The roles of the genes that have something to choose from."""

    @abstractmethod
    def dimensions(self, name: str = "") -> Iterator[tuple[str, Choice]]:
        """Every Choice of the declaration, depths included, with its dotted name; `name` is that of this node."""

    @abstractmethod
    def replace_choices(self, choices: Mapping[str, Choice], name: str = "") -> Node:
        """The same space with other choices for the dimensions that are named."""

    @abstractmethod
    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        """The value of each dimension that the member has, once for every time it occurs."""

    @abstractmethod
    def adapt(self, value: Value, rng: Rng) -> Value:
        """A member that keeps what it can of a value of any other node: what has the same name and is allowed here.

        The rest is drawn. So a net keeps its sizes when a block becomes one of another type.
        """

    @abstractmethod
    def _corners(self) -> list[Value]: ...


def corners(node: Node) -> list[Value]:
    """The largest members that together contain every option of every OneOf.

    Their parameters together are those of the supernet. Without a OneOf it is just the largest member;
    otherwise member k takes option k (or the last one) in every OneOf. Two cases need more members to reach
    every option: a OneOf inside an option of another, and rules that tie several OneOf together.
    """
    return list(dict.fromkeys(node._corners()))


def below(name: str, part: str) -> str:
    """The dotted name of a part of a node; the root has no name."""
    return f"{name}.{part}" if name else part


def check_children(owner: str, children: dict[str, Any]) -> None:
    """Refuse names that an Arch could not show as attributes, and children that are not nodes."""
    for name, child in children.items():
        if hasattr(Arch, name):
            raise UserError(f"{owner} cannot have the name {name!r}: Arch.{name} exists; choose another name")
        if not isinstance(child, Node):
            raise UserError(f"{owner} {name} is {child!r}, expected a node such as Choice({child!r})")


def nearest_position(number: float, count: int) -> int:
    """The position among `count` that is nearest to any number."""
    # Clip before rounding: infinity cannot be rounded. Zero comes first so that max() drops a NaN.
    return round(min(max(0.0, float(number)), count - 1))


def lazy_product(*sources: Callable[[], Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Like itertools.product, but reads each source anew instead of holding it in memory."""
    if not sources:
        yield ()
        return
    for first in sources[0]():
        for rest in lazy_product(*sources[1:]):
            yield (first, *rest)
