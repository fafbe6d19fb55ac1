"""Node: what every part of a space can do. A space is a tree of nodes; a member of it is one immutable value.

`sample` is the one walk that builds a member. The smallest and the largest member are the same walk with a random
number generator that always draws the first or the last position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from nasformer.errors import UserError
from nasformer.space.arch import Arch, Value
from nasformer.space.genes import Gene, Mutation, Path, Role

if TYPE_CHECKING:
    from nasformer.space.nodes import Choice


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
