"""Choice: one value out of a list; the leaf of every space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from random import Random
from reprlib import repr as short

from nasformer.errors import UserError
from nasformer.space.arch import Value
from nasformer.space.genes import Gene, Path, Role, check_role
from nasformer.space.mutation import Mutation
from nasformer.space.node import FIRST, Node, Rng, nearest_position

Scalar = int | float | str | bool


class Choice(Node):
    """One of the given scalars. Numbers must ascend, so that one position up always means larger.

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
        # True == 1 in Python, yet whoever writes true for 1 meant something else.
        if position is None or isinstance(value, bool) != isinstance(self.values[position], bool):
            raise UserError(f"{path} is {short(value)}, allowed: {', '.join(map(repr, self.values))}")
        return position

    def sample(self, rng: Rng, given: Value = None) -> Scalar:
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
        if not mutation.moves(self.role):
            return value
        return self.sample(rng) if rng.random() < mutation.width else value

    def cross(self, a: Value, b: Value, rng: Random) -> Scalar:
        return a if rng.random() < 0.5 else b

    def neighbours(self, value: Value, fresh: Rng = FIRST) -> Iterator[Scalar]:
        position = self.position(value)
        yield from self.values[max(position - 1, 0) : position]
        yield from self.values[position + 1 : position + 2]

    def picks(self, value: Value, path: Path = ()) -> Iterator[tuple[Path, str]]:
        return iter(())

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


def _check_values(values: tuple[Scalar, ...]) -> None:
    shown = ", ".join(map(short, values))
    if not values:
        raise UserError("Choice() has no values, expected at least one, such as Choice(3, 4)")
    if not all(isinstance(value, int | float | str) for value in values):
        raise UserError(f"Choice({shown}) has values that are not scalars; list the values: Choice(3, 4)")
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not all(map(isfinite, numbers)):
        raise UserError(f"Choice({shown}) has a value that is not finite, expected ordinary numbers")
    if len(set(values)) < len(values):
        raise UserError(f"Choice({shown}) names a value twice, expected each value once")
    if numbers != sorted(numbers):
        raise UserError(f"Choice({shown}) is not in order, numbers must ascend")
