"""Nodes: a space is a tree of Choice, Repeat, OneOf and Struct; a member of it is one immutable value.

`sample` is the one walk that builds a member. The smallest and the largest member are the same walk with a random
number generator that always draws the first or the last position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import accumulate, pairwise
from math import prod
from random import Random
from reprlib import repr as short
from typing import Any, Protocol, Self

from nasformer.errors import UserError
from nasformer.space.arch import Arch, ArchPool, Value
from nasformer.space.mutation import Gene, Mutation, Path, Role, check_role
from nasformer.space.rules import Rule, Values, check_rules, group_fields


class Rng(Protocol):
    """The random numbers that sampling needs; a `random.Random` has them."""

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

    `value`, `a`, `b` and `like` are members of the node, as `validate` or `sample` return them.
    """

    cardinality: int  # how many members there are, exactly
    code_length: int  # how many numbers `encode` gives, the same for all members

    @abstractmethod
    def sample(self, rng: Rng, like: Value = None) -> Value:
        """A random member; with `like`, one that takes the same option as `like` in every OneOf."""

    def smallest(self, like: Value = None) -> Value:
        """The member that takes the first of everything; `like` as in `sample`."""
        return self.sample(FIRST, like)

    def largest(self, like: Value = None) -> Value:
        """The member that takes the last of everything; `like` as in `sample`."""
        return self.sample(LAST, like)

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

    def picks(self, value: Value, path: Path = ()) -> Iterator[tuple[Path, str]]:
        """Which option each OneOf in the member takes: pairs of its path and the option's name."""
        return ((gene.path, gene.value) for gene in self.genes(value, path) if gene.is_pick)

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


def part_name(name: str, part: str) -> str:
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


# Choice: a value of a list.

Scalar = int | float | str | bool


class Choice(Node):
    """A value of a list of scalars. Numbers must ascend, so that one position up always means larger.

    `role` says what the choice decides: the "size" of the net, or its "topology" as a kernel does. It matters only to
    searches that move one of the two at a time.

    >>> heads = Choice(3, 4, 6)
    >>> heads.cardinality, heads.smallest(), heads.largest()
    (3, 3, 6)
    >>> heads.validate(5)
    Traceback (most recent call last):
    nasformer.errors.UserError: arch is 5, allowed: 3, 4, 6
    >>> Choice(3, 5, 7, role="topology")
    Choice(3, 5, 7, role='topology')
    """

    def __init__(self, *values: Scalar, role: Role = "size") -> None:
        _check_values(values)
        check_role("Choice", role)
        self.values, self.role = values, role
        self.cardinality = len(values)
        self.code_length = 1
        self._positions = {value: position for position, value in enumerate(values)}

    def __repr__(self) -> str:
        role = [] if self.role == "size" else [f"role={self.role!r}"]
        return f"Choice({', '.join([*map(repr, self.values), *role])})"

    def position(self, value: Value, path: str = "arch") -> int:
        """The index of a value; UserError when it is not among the choices."""
        try:
            position = self._positions[value]
        except (KeyError, TypeError):  # TypeError: a list or a dict is no key
            position = None
        # True == 1 in Python, but true is not meant as the number 1.
        if position is None or isinstance(value, bool) != isinstance(self.values[position], bool):
            raise UserError(f"{path} is {short(value)}, allowed: {', '.join(map(repr, self.values))}")
        return position

    def sample(self, rng: Rng, like: Value = None) -> Scalar:
        return self.values[rng.randrange(self.cardinality)]

    def deepest(self) -> Choice:
        return self

    def enumerate(self) -> Iterator[Scalar]:
        return iter(self.values)

    def validate(self, value: Value, path: str = "arch") -> Scalar:
        return self.values[self.position(value, path)]

    def encode(self, value: Value) -> list[float]:
        return [float(self.position(value))]

    def _decode(self, vector: Sequence[float]) -> Scalar:
        return self.values[nearest_position(vector[0], self.cardinality)]

    def mutate(self, value: Value, rng: Random, mutation: Mutation) -> Scalar:
        if mutation.moves(self.role) and rng.random() < mutation.width:
            return self.sample(rng)
        return value  # type: ignore[no-any-return]

    def cross(self, a: Value, b: Value, rng: Random) -> Scalar:
        return a if rng.random() < 0.5 else b

    def neighbours(self, value: Value, fresh: Rng = FIRST) -> Iterator[Scalar]:
        position = self.position(value)
        yield from self.values[max(position - 1, 0) : position]
        yield from self.values[position + 1 : position + 2]

    def genes(self, value: Value, path: Path = ()) -> Iterator[Gene]:
        yield Gene(path, self.role, value)

    def roles(self) -> set[Role]:
        return {self.role} if self.cardinality > 1 else set()

    def dimensions(self, name: str = "") -> Iterator[tuple[str, Choice]]:
        yield name, self

    def replace_choices(self, choices: Mapping[str, Choice], name: str = "") -> Choice:
        return choices.get(name, self)

    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        yield name, value

    def adapt(self, value: Value, rng: Rng) -> Scalar:
        return self.validate(value) if self.contains(value) else self.sample(rng)

    def _corners(self) -> list[Scalar]:
        return [self.values[-1]]


LARGEST = 10**9  # of a value: no dimension of a network comes near it


def _check_values(values: tuple[Scalar, ...]) -> None:
    shown = ", ".join(map(short, values))
    if not values:
        raise UserError("Choice() has no values, expected at least one, such as Choice(3, 4)")
    if not all(isinstance(value, int | float | str) for value in values):
        raise UserError(f"Choice({shown}) has values that are not scalars; list the values: Choice(3, 4)")
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not all(-LARGEST <= value <= LARGEST for value in numbers):  # so is NaN
        raise UserError(f"Choice({shown}) has a value that is not finite or beyond 10^9, expected ordinary numbers")
    if len(set(values)) < len(values):
        raise UserError(f"Choice({shown}) names a value twice, expected each value once")
    if numbers != sorted(numbers):
        raise UserError(f"Choice({shown}) is not in order, numbers must ascend")


# Repeat: a stack of items, of variable depth. A member is a tuple of items.

Items = tuple[Value, ...]
DEEPEST = 1000  # items of a Repeat: deeper nets would take hours to build, and archs all memory


class Repeat(Node):
    """As many items as `depth` says, each chosen on its own. The depth is drawn first, then every item.

    The role of the depth is that of its Choice: size, unless it says otherwise.

    >>> blocks = Repeat(Choice(3, 4), depth=Choice(1, 2))
    >>> list(blocks.enumerate())
    [(3,), (4,), (3, 3), (3, 4), (4, 3), (4, 4)]
    >>> blocks.encode((4,)), blocks.encode((4, 3))
    ([0.0, 1.0, -1.0], [1.0, 1.0, 0.0])
    """

    def __init__(self, item: Node, depth: Choice) -> None:
        _check_repeat(item, depth)
        self.item, self.depth = item, depth
        self.depths: tuple[int, ...] = depth.values  # type: ignore[assignment]
        self.cardinality = sum(item.cardinality**count for count in self.depths)
        self.code_length = 1 + self.depths[-1] * item.code_length

    def __repr__(self) -> str:
        return f"Repeat({self.item!r}, depth={self.depth!r})"

    def sample(self, rng: Rng, like: Value = None) -> Items:
        depth = self.depths[rng.randrange(len(self.depths))]
        if like is None:
            return tuple([self.item.sample(rng) for _ in range(depth)])
        fixed = (*like, *[None] * (depth - len(like)))
        return tuple(self.item.sample(rng, fixed[layer]) for layer in range(depth))

    def deepest(self) -> Repeat:
        return Repeat(self.item.deepest(), depth=Choice(self.depths[-1], role=self.depth.role))

    def enumerate(self) -> Iterator[Items]:
        for depth in self.depths:
            yield from lazy_product(*[self.item.enumerate] * depth)

    def validate(self, value: Value, path: str = "arch") -> Items:
        if not isinstance(value, list | tuple):
            raise UserError(f"{path} is {short(value)}, expected a list of {self._allowed()} items")
        if len(value) not in self.depths:
            raise UserError(f"{path} has {len(value)} items, allowed: {self._allowed()}")
        return tuple([self.item.validate(item, f"{path}[{layer}]") for layer, item in enumerate(value)])

    def _allowed(self) -> str:
        return ", ".join(map(str, self.depths))

    def encode(self, value: Value) -> list[float]:
        code = self.depth.encode(len(value))
        for item in value:
            code += self.item.encode(item)
        return code + [-1.0] * (self.code_length - len(code))

    def _decode(self, vector: Sequence[float]) -> Items:
        depth, size = self.depth._decode(vector[:1]), self.item.code_length
        return tuple(self.item._decode(vector[1 + layer * size :][:size]) for layer in range(int(depth)))

    def mutate(self, value: Value, rng: Random, mutation: Mutation) -> Items:
        redrawn = mutation.moves(self.depth.role) and rng.random() < mutation.depth
        depth = self.depths[rng.randrange(len(self.depths))] if redrawn else len(value)
        kept = self._mutate_items(value[:depth], rng, mutation)
        last = kept[-1] if kept else None
        return (*kept, *[self._redraw(last, rng, mutation) for _ in range(depth - len(kept))])

    def _mutate_items(self, items: Items, rng: Random, mutation: Mutation) -> list[Value]:
        if mutation.unit == "block":
            return [self._redraw(item, rng, mutation) if rng.random() < mutation.block else item for item in items]
        inner = mutation.inside_repeat
        return [self.item.mutate(item, rng, inner) for item in items]

    def _redraw(self, item: Value, rng: Random, mutation: Mutation) -> Value:
        """A new item; where the mutation has a role, one that differs from `item` in genes of that role alone."""
        if mutation.role is None or item is None:
            return self.item.sample(rng)
        return self.item.mutate(item, rng, mutation.certain)

    def cross(self, a: Value, b: Value, rng: Random) -> Items:
        child = list(a if rng.random() < 0.5 else b)
        for layer, pair in enumerate(zip(a, b, strict=False)):  # deeper layers exist in one parent only
            if layer < len(child):
                child[layer] = pair[rng.randrange(2)]
        return tuple(child)

    def neighbours(self, value: Value, fresh: Rng = FIRST) -> Iterator[Items]:
        for depth in self.depth.neighbours(len(value)):
            added = [self.item.sample(fresh) for _ in range(int(depth) - len(value))]
            yield (*value[: int(depth)], *added)
        for layer, item in enumerate(value):
            for step in self.item.neighbours(item, fresh):
                yield (*value[:layer], step, *value[layer + 1 :])

    def genes(self, value: Value, path: Path = ()) -> Iterator[Gene]:
        yield Gene(path, self.depth.role, len(value))
        for layer, item in enumerate(value):
            yield from self.item.genes(item, (*path, layer))

    def roles(self) -> set[Role]:
        return self.depth.roles() | (self.item.roles() if self.depths[-1] else set())

    def dimensions(self, name: str = "") -> Iterator[tuple[str, Choice]]:
        yield part_name(name, "depth"), self.depth
        yield from self.item.dimensions(self._inside(name))

    def replace_choices(self, choices: Mapping[str, Choice], name: str = "") -> Repeat:
        depth = choices.get(part_name(name, "depth"), self.depth)
        return Repeat(self.item.replace_choices(choices, self._inside(name)), depth=depth)

    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        yield part_name(name, "depth"), len(value)
        for item in value:
            yield from self.item.uses(item, self._inside(name))

    def _inside(self, name: str) -> str:
        """Parts of an item are named as if they were the stack's; an item without named parts is its `item`."""
        return part_name(name, "item") if isinstance(self.item, Choice | Repeat) else name

    def adapt(self, value: Value, rng: Rng) -> Items:
        is_stack = isinstance(value, tuple)
        depth = int(self.depth.adapt(len(value), rng) if is_stack else self.depth.sample(rng))
        # Layers that the value does not have are made from its last one, as in mutation; without any, they are drawn.
        items = value if is_stack and value else (None,)
        sources = (*items, *items[-1:] * (depth - len(items)))
        return tuple(self.item.adapt(source, rng) for source in sources[:depth])

    def _corners(self) -> list[Items]:
        return [(corner,) * self.depths[-1] for corner in self.item._corners()]


def _check_repeat(item: Node, depth: Choice) -> None:
    if not isinstance(item, Node):
        raise UserError(f"Repeat has the item {item!r}, expected a node such as Struct(...) or Choice(...)")
    if not isinstance(depth, Choice):
        raise UserError(f"Repeat has depth={depth!r}, expected a Choice such as depth=Choice(12, 13, 14)")
    if not all(type(count) is int and count >= 0 for count in depth.values):
        raise UserError(f"Repeat has depth={depth!r}, expected whole numbers, none below 0")
    if depth.values[-1] > DEEPEST:  # type: ignore[operator]
        raise UserError(f"Repeat has depth={depth!r}, expected at most {DEEPEST} items")


# OneOf: one of several options, each with its own choices. A member is an arch with one key.


class ByCardinality(Random):
    """Random generator with which a OneOf draws an option in proportion to its members: all members are equally likely.

    >>> from nasformer import Choice
    >>> operator, rng = OneOf(small=Choice(1), large=Choice(*range(99))), ByCardinality(0)
    >>> sum("large" in operator.sample(rng) for _ in range(1000)) > 950
    True
    """


class OneOf(Node):
    """One of several named options, smaller options first.

    Sampling picks the option uniformly, then goes on inside it, so that an option with many configurations is
    no likelier than one with few. (TrioNet calls this Hierarchical Sampling; `ByCardinality` is the other way.)

    >>> from nasformer import Choice, Struct
    >>> operator = OneOf(conv=Struct(kernel=Choice(3, 5)), attention=Struct(heads=Choice(4, 8)))
    >>> operator.smallest()
    Arch(conv=Arch(kernel=3))
    >>> operator.encode(operator.largest())
    [1.0, -1.0, 1.0]

    The pick is a gene of the topology, unless `with_role` says otherwise.
    """

    role: Role = "topology"

    def __init__(self, /, **options: Node) -> None:
        check_children("OneOf option", options)
        if not options:
            raise UserError("OneOf() has no options, expected at least one, such as OneOf(conv=Struct(...))")
        self.options = options
        self.names = tuple(options)
        self._ends = list(accumulate(option.cardinality for option in options.values()))
        self.cardinality = self._ends[-1]
        self.code_length = 1 + sum(option.code_length for option in options.values())
        self._pool = ArchPool(self.cardinality)

    def __repr__(self) -> str:
        role = "" if self.role == "topology" else f".with_role({self.role!r})"
        return f"OneOf({', '.join(f'{name}={option!r}' for name, option in self.options.items())}){role}"

    def with_role(self, role: Role) -> Self:
        """The same options, with a pick of another role. (A method, for an option may well be named `role`.)

        >>> from nasformer import Struct
        >>> OneOf(thin=Struct(), wide=Struct()).with_role("size")
        OneOf(thin=Struct(), wide=Struct()).with_role('size')
        """
        check_role("OneOf", role)
        other = copy(self)
        other.role = role
        return other

    def pick(self, rng: Rng) -> str:
        """The name of a random option. Another distribution over the options needs to change only this.

        It may call only `rng.randrange`: the smallest and the largest member are drawn with `FIRST` and `LAST`.
        """
        if isinstance(rng, ByCardinality):  # the option of a random one of all the members
            return self.names[bisect_right(self._ends, rng.randrange(self.cardinality))]
        return self.names[rng.randrange(len(self.names))]

    def sample(self, rng: Rng, like: Value = None) -> Arch:
        name = self.pick(rng) if like is None else _name(like)
        return self._pool.arch({name: self.options[name].sample(rng, None if like is None else like[name])})

    def deepest(self) -> OneOf:
        return self._with_options({name: option.deepest() for name, option in self.options.items()})

    def _with_options(self, options: dict[str, Node]) -> Self:
        other = copy(self)  # keeps the role, and the subclass, which may pick differently
        OneOf.__init__(other, **options)
        return other

    def enumerate(self) -> Iterator[Arch]:
        for name, option in self.options.items():
            for value in option.enumerate():
                yield Arch(**{name: value})

    def validate(self, value: Value, path: str = "arch") -> Arch:
        allowed = ", ".join(self.names)
        if not isinstance(value, Mapping) or len(value) != 1:
            raise UserError(f"{path} is {short(value)}, expected exactly one of the options: {allowed}")
        name = _name(value)
        if name not in self.options:
            raise UserError(f"{path} has the unknown option {name!r}, allowed: {allowed}")
        return self._pool.arch({name: self.options[name].validate(value[name], f"{path}.{name}")})

    def encode(self, value: Value) -> list[float]:
        code = [float(self.names.index(_name(value)))]
        for name, option in self.options.items():
            code += option.encode(value[name]) if name in value else [-1.0] * option.code_length
        return code

    def _decode(self, vector: Sequence[float]) -> Arch:
        position = nearest_position(vector[0], len(self.names))
        name, option = self.names[position], self.options[self.names[position]]
        start = 1 + sum(self.options[other].code_length for other in self.names[:position])
        return Arch(**{name: option._decode(vector[start : start + option.code_length])})

    def mutate(self, value: Value, rng: Random, mutation: Mutation) -> Arch:
        if mutation.role:
            return self._mutate_role(value, rng, mutation)
        if rng.random() < mutation.width:
            return self.sample(rng)
        name = _name(value)
        return self._pool.arch({name: self.options[name].mutate(value[name], rng, mutation)})

    def _mutate_role(self, value: Value, rng: Random, mutation: Mutation) -> Arch:
        """Moves the pick only if it has the mutation's role; the content keeps what it can in another option."""
        old, content = next(iter(value.items()))
        name = self.pick(rng) if mutation.moves(self.role) and rng.random() < mutation.width else old
        if name != old:
            content = self.options[name].adapt(content, rng)
        return self._pool.arch({name: self.options[name].mutate(content, rng, mutation)})

    def cross(self, a: Value, b: Value, rng: Random) -> Arch:
        return a if rng.random() < 0.5 else b

    def neighbours(self, value: Value, fresh: Rng = FIRST) -> Iterator[Arch]:
        current = _name(value)
        for name, option in self.options.items():
            inside = name == current
            for step in option.neighbours(value[name], fresh) if inside else [option.sample(fresh)]:
                yield Arch(**{name: step})

    def genes(self, value: Value, path: Path = ()) -> Iterator[Gene]:
        name = _name(value)
        yield Gene(path, self.role, name, is_pick=True)
        yield from self.options[name].genes(value[name], (*path, name))

    def roles(self) -> set[Role]:
        pick: set[Role] = {self.role} if len(self.names) > 1 else set()
        return pick.union(*(option.roles() for option in self.options.values()))

    def dimensions(self, name: str = "") -> Iterator[tuple[str, Choice]]:
        for part, option in self.options.items():
            yield from option.dimensions(part_name(name, part))

    def replace_choices(self, choices: Mapping[str, Choice], name: str = "") -> OneOf:
        options = {
            part: option.replace_choices(choices, part_name(name, part)) for part, option in self.options.items()
        }
        return self._with_options(options)

    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        part = _name(value)
        yield from self.options[part].uses(value[part], part_name(name, part))

    def adapt(self, value: Value, rng: Rng) -> Arch:
        is_pick = isinstance(value, Mapping) and len(value) == 1
        name, content = next(iter(value.items())) if is_pick else ("", None)
        if name not in self.options:  # one of another space, or none: a random option then takes what content it can
            name = self.pick(rng)
        return Arch(**{name: self.options[name].adapt(content, rng)})

    def _corners(self) -> list[Arch]:
        return [Arch(**{name: corner}) for name, option in self.options.items() for corner in option._corners()]


def _name(value: Mapping[str, Value]) -> str:
    return next(iter(value))


# Struct: named fields, chosen independently except where a rule ties them. A member is an arch.


class Struct(Node):
    """Named fields, and rules between them.

    Fields joined by rules form a group, whose values are drawn, crossed and counted together; the other
    fields are free.

    >>> from nasformer import Choice
    >>> rule = Rule(("heads1", "heads2"), lambda first, second: second % first == 0, "heads1 must divide heads2")
    >>> stages = Struct(rule, heads1=Choice(2, 4), heads2=Choice(2, 4), base_dim=Choice(16, 24))
    >>> stages.cardinality, stages.largest()
    (6, Arch(heads1=4, heads2=4, base_dim=24))
    >>> stages.validate({"heads1": 4, "heads2": 2, "base_dim": 16})
    Traceback (most recent call last):
    nasformer.errors.UserError: arch breaks a rule: heads1 must divide heads2 (heads1 is 4, heads2 is 2)
    """

    def __init__(self, /, *rules: Rule, **fields: Node) -> None:
        check_children("Struct field", fields)
        check_rules(rules, fields)
        self.rules, self.fields = rules, fields
        self.groups = group_fields(rules, fields)
        tied = {name for group in self.groups for name in group.fields}
        self.free = {name: field for name, field in fields.items() if name not in tied}
        self.cardinality = prod(field.cardinality for field in self.free.values())
        self.cardinality *= prod(len(group.combinations) for group in self.groups)
        ends = list(accumulate((field.code_length for field in fields.values()), initial=0))
        self.code_length = ends[-1]
        self._spans = {name: slice(*span) for name, span in zip(fields, pairwise(ends), strict=True)}
        self._pool = ArchPool(self.cardinality)

    def __repr__(self) -> str:
        parts = [*map(repr, self.rules), *(f"{name}={field!r}" for name, field in self.fields.items())]
        return f"Struct({', '.join(parts)})"

    def _arch(self, *parts: Values) -> Arch:
        """The arch made of the values of free fields and groups, in the order of the declaration."""
        if len(parts) == 1:  # no groups: the common case, kept fast
            return self._pool.arch(parts[0])
        values = {name: value for part in parts for name, value in part.items()}
        return self._pool.arch({name: values[name] for name in self.fields})

    def sample(self, rng: Rng, like: Value = None) -> Arch:
        if like is None:
            free = {name: field.sample(rng) for name, field in self.free.items()}
        else:
            free = {name: field.sample(rng, like[name]) for name, field in self.free.items()}
        return self._arch(free, *(group.sample(rng, like) for group in self.groups))

    def deepest(self) -> Struct:
        return Struct(*self.rules, **{**self.fields, **{name: field.deepest() for name, field in self.free.items()}})

    def enumerate(self) -> Iterator[Arch]:
        parts: list[Callable[[], Any]] = [_named_members(name, field) for name, field in self.free.items()]
        parts += [group.combinations.__iter__ for group in self.groups]
        for chosen in lazy_product(*parts):
            yield self._arch(*chosen)

    def validate(self, value: Value, path: str = "arch") -> Arch:
        self._check_names(value, path)
        arch = Arch(**{name: field.validate(value[name], f"{path}.{name}") for name, field in self.fields.items()})
        for rule in self.rules:
            if not rule.holds(arch):
                values = ", ".join(f"{name} is {short(arch[name])}" for name in rule.fields)
                raise UserError(f"{path} breaks a rule: {rule.why} ({values})")
        return arch

    def _check_names(self, value: Value, path: str) -> None:
        if isinstance(value, Mapping) and value.keys() == self.fields.keys():
            return
        expected = ", ".join(self.fields) or "none"
        if not isinstance(value, Mapping):
            raise UserError(f"{path} is {short(value)}, expected the fields: {expected}")
        for name in value:
            if name not in self.fields:
                raise UserError(f"{path} has the unknown field {name!r}, allowed: {expected}")
        for name in self.fields:
            if name not in value:
                raise UserError(f"{path}.{name} is missing, expected the fields: {expected}")

    def encode(self, value: Value) -> list[float]:
        return [number for name, field in self.fields.items() for number in field.encode(value[name])]

    def _decode(self, vector: Sequence[float]) -> Arch:
        values = {name: field._decode(vector[self._spans[name]]) for name, field in self.fields.items()}
        return self._arch(values, *(group.nearest(values) for group in self.groups))

    def mutate(self, value: Value, rng: Random, mutation: Mutation) -> Arch:
        old = value._fields
        free = {name: field.mutate(old[name], rng, mutation) for name, field in self.free.items()}
        if not self.groups and free == old:
            return value  # type: ignore[no-any-return]
        return self._arch(free, *(group.mutate(value, rng, mutation) for group in self.groups))

    def cross(self, a: Value, b: Value, rng: Random) -> Arch:
        free = {name: field.cross(a[name], b[name], rng) for name, field in self.free.items()}
        return self._arch(free, *(group.cross(a, b, rng) for group in self.groups))

    def neighbours(self, value: Value, fresh: Rng = FIRST) -> Iterator[Arch]:
        for name, field in self.fields.items():
            for step in field.neighbours(value[name], fresh):
                arch = Arch(**{**value, name: step})
                if all(rule.holds(arch) for rule in self.rules):
                    yield arch

    def genes(self, value: Value, path: Path = ()) -> Iterator[Gene]:
        for name, field in self.fields.items():
            yield from field.genes(value[name], (*path, name))

    def roles(self) -> set[Role]:
        return set[Role]().union(*(field.roles() for field in self.fields.values()))

    def dimensions(self, name: str = "") -> Iterator[tuple[str, Choice]]:
        for part, field in self.fields.items():
            yield from field.dimensions(part_name(name, part))

    def replace_choices(self, choices: Mapping[str, Choice], name: str = "") -> Struct:
        fields = {part: field.replace_choices(choices, part_name(name, part)) for part, field in self.fields.items()}
        return Struct(*self.rules, **fields)

    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        for part, field in self.fields.items():
            yield from field.uses(value[part], part_name(name, part))

    def adapt(self, value: Value, rng: Rng) -> Arch:
        values = value if isinstance(value, Mapping) else {}
        free = {name: field.adapt(values.get(name), rng) for name, field in self.free.items()}
        return self._arch(free, *(group.adapt(values, rng) for group in self.groups))

    def _corners(self) -> list[Arch]:
        parts: list[list[Mapping[str, Value]]] = [group.corners() for group in self.groups]
        parts += [[{name: corner} for corner in field._corners()] for name, field in self.free.items()]
        count = max(map(len, parts), default=1)
        return [self._arch(*(part[min(k, len(part) - 1)] for part in parts)) for k in range(count)]


def _named_members(name: str, field: Node) -> Callable[[], Iterator[dict[str, Value]]]:
    return lambda: ({name: value} for value in field.enumerate())
