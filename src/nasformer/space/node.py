"""What every node of a space can do. A space is a tree of nodes; a member of it is one immutable value.

`sample` is the one walk that builds a member. The smallest and the largest member are the same walk with dice
that always show the first or the last face.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Literal, Protocol

from nasformer.errors import UserError
from nasformer.space.arch import Arch, Value
from nasformer.space.genes import Gene, Path, Role, check_role

if TYPE_CHECKING:
    from nasformer.space.choice import Choice


# ----------------------------------------------------------------------------------------------------------------------
# How strongly evolution mutates an architecture: three chances and the unit that they apply to.
# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutation:
    """Chances to redraw the parts of an architecture.

    A redraw draws from all the choices, so it may give the same value again, as AutoFormer's code does.

    Args:
        depth: Chance to redraw the depth of each Repeat. Deeper appends freshly sampled items, shallower
            truncates.
        width: Chance to redraw each Choice, or each pick of a OneOf, that lies outside any Repeat. A redrawn
            pick brings freshly sampled contents.
        block: The same inside a Repeat.
        unit: What `block` applies to: with "gene" each Choice (or pick) of each item on its own, with "block"
            each item as a whole.
        role: Redraws only the genes of this role; all others stay as they are. A redrawn pick then brings along the
            fields of the old option that the new one has by the same name, as far as it allows their values, and
            draws the rest. A deeper Repeat copies its last item and redraws the genes of the role in the copies, so
            that no gene of the other role is invented (only a Repeat that was empty has nothing to copy, and samples).
    """

    depth: float
    width: float
    block: float
    unit: Literal["gene", "block"] = "gene"
    role: Role | None = None

    def __post_init__(self) -> None:
        for name in ("depth", "width", "block"):
            chance = getattr(self, name)
            if not 0 <= chance <= 1:
                raise UserError(f"mutation {name} is {chance}, expected a chance between 0 and 1")
        if self.unit not in ("gene", "block"):
            raise UserError(f"mutation unit is {self.unit!r}, allowed: 'gene', 'block'")
        if self.role is not None:
            check_role("mutation", self.role)

    def moves(self, role: Role) -> bool:
        """Whether it redraws genes of this role at all."""
        return self.role is None or self.role == role

    def inside_repeat(self) -> Mutation:
        """This mutation as the items of a Repeat see it: their choices are redrawn with chance `block`."""
        return replace(self, width=self.block)

    def certain(self) -> Mutation:
        """This mutation with every chance at 1."""
        return replace(self, depth=1.0, width=1.0, block=1.0)


# AutoFormer gives two sets of numbers. Its published code redraws each gene of a layer with chance 0.2, depth
# and embedding with 0.4; its paper has the two swapped: depth 0.2, each block 0.4.
MUTATIONS = {"code": Mutation(0.4, 0.4, 0.2, "gene"), "paper": Mutation(0.2, 0.2, 0.4, "block")}


class Dice(Protocol):
    """What sampling asks of its source of randomness; a `random.Random` is one."""

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
    def sample(self, rng: Dice, given: Value = None) -> Value:
        """A random member; with `given`, one that takes the same option as `given` in every OneOf."""

    def smallest(self, given: Value = None) -> Value:
        """The member that takes the first of everything; `given` as in `sample`."""
        return self.sample(FIRST, given)

    def largest(self, given: Value = None) -> Value:
        """The member that takes the last of everything; `given` as in `sample`."""
        return self.sample(LAST, given)

    @abstractmethod
    def deepest(self) -> Node:
        """The same space, but every Repeat has its largest depth; stacks that a rule ties to others stay as they are.

        A member of it has an item, and so an operator, in every place that any member has.
        """

    @abstractmethod
    def enumerate(self) -> Iterator[Value]:
        """All members, each once. Lazy: it is fine to take a few from a huge space."""

    @abstractmethod
    def validate(self, value: Value, path: str = "arch") -> Value:
        """The member that `value` (an Arch, or plain dicts and lists) means; UserError when it is none.

        `path` says in the error where the value stands.
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
        """A random relative of the member; see `Mutation` for the chances."""

    @abstractmethod
    def cross(self, a: Value, b: Value, rng: Random) -> Value:
        """A child of two members, which takes each part from one of them at random."""

    @abstractmethod
    def neighbours(self, value: Value, fresh: Dice = FIRST) -> Iterator[Value]:
        """All members one step away: one Choice or depth moved by one position, or one OneOf option replaced.

        Parts that a step adds are drawn with `fresh`: the smallest by default.
        """

    @abstractmethod
    def picks(self, value: Value, path: Path = ()) -> Iterator[tuple[Path, str]]:
        """Which option each OneOf in the member takes: pairs of where it is and the option's name."""

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
    def replaced(self, choices: Mapping[str, Choice], name: str = "") -> Node:
        """The same space with other choices for the dimensions that are named."""

    @abstractmethod
    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        """The value of each dimension that the member has, once for every place where it stands."""

    @abstractmethod
    def carry(self, value: Value, rng: Dice) -> Value:
        """A member that keeps what it can of a value of any other node: what has the same name and is allowed here.

        The rest is drawn. That is how a net keeps its sizes when a block becomes one of another kind.
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
    """The dotted name of a part of what has a name; the root has none."""
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
