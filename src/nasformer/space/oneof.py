"""OneOf: one of several options, each with its own choices. A member is an arch with one key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import accumulate
from random import Random
from reprlib import repr as short
from typing import Self

from nasformer.errors import UserError
from nasformer.space.arch import Arch, ArchPool, Value
from nasformer.space.choice import Choice
from nasformer.space.genes import Gene, Path, Role, check_role
from nasformer.space.mutation import Mutation
from nasformer.space.node import FIRST, Node, Rng, below, check_children, nearest_position


class ByCardinality(Random):
    """Random generator with which a OneOf draws an option in proportion to its members: all members are equally likely.

    >>> from nasformer.space import Choice
    >>> operator, rng = OneOf(small=Choice(1), large=Choice(*range(99))), ByCardinality(0)
    >>> sum("large" in operator.sample(rng) for _ in range(1000)) > 950
    True
    """


class OneOf(Node):
    """One of the named options, smaller ones first.

    Sampling picks the option uniformly, then goes on inside it, so that an option with many configurations is
    no likelier than one with few. (TrioNet calls this Hierarchical Sampling; `ByCardinality` is the other way.)

    >>> from nasformer.space import Choice, Struct
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

        >>> from nasformer.space import Struct
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

    def sample(self, rng: Rng, given: Value = None) -> Arch:
        name = self.pick(rng) if given is None else _name(given)
        return self._pool.arch({name: self.options[name].sample(rng, None if given is None else given[name])})

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
        name = old = _name(value)
        content = value[old]
        if mutation.moves(self.role) and rng.random() < mutation.width:
            name = self.pick(rng)
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

    def picks(self, value: Value, path: Path = ()) -> Iterator[tuple[Path, str]]:
        name = _name(value)
        yield path, name
        yield from self.options[name].picks(value[name], (*path, name))

    def genes(self, value: Value, path: Path = ()) -> Iterator[Gene]:
        name = _name(value)
        yield Gene(path, self.role, name)
        yield from self.options[name].genes(value[name], (*path, name))

    def roles(self) -> set[Role]:
        pick: set[Role] = {self.role} if len(self.names) > 1 else set()
        return pick.union(*(option.roles() for option in self.options.values()))

    def dimensions(self, name: str = "") -> Iterator[tuple[str, Choice]]:
        for part, option in self.options.items():
            yield from option.dimensions(below(name, part))

    def replace_choices(self, choices: Mapping[str, Choice], name: str = "") -> OneOf:
        options = {part: option.replace_choices(choices, below(name, part)) for part, option in self.options.items()}
        return self._with_options(options)

    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        part = _name(value)
        yield from self.options[part].uses(value[part], below(name, part))

    def adapt(self, value: Value, rng: Rng) -> Arch:
        content = next(iter(value.values())) if isinstance(value, Mapping) and len(value) == 1 else None
        name = _name(value) if content is not None else ""
        name = name if name in self.options else self.pick(rng)
        return Arch(**{name: self.options[name].adapt(content, rng)})

    def _corners(self) -> list[Arch]:
        return [Arch(**{name: corner}) for name, option in self.options.items() for corner in option._corners()]


def _name(value: Mapping[str, Value]) -> str:
    return next(iter(value))
