"""Repeat: a stack of items, of variable depth. A member is a tuple of items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from reprlib import repr as short

from nasformer.errors import UserError
from nasformer.space.arch import Value
from nasformer.space.choice import Choice
from nasformer.space.genes import Gene, Path, Role
from nasformer.space.mutation import Mutation
from nasformer.space.node import FIRST, Node, Rng, below, lazy_product

Items = tuple[Value, ...]


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
        _check(item, depth)
        self.item, self.depth = item, depth
        self.depths: tuple[int, ...] = depth.values  # type: ignore[assignment]
        self.cardinality = sum(item.cardinality**count for count in self.depths)
        self.code_length = 1 + self.depths[-1] * item.code_length

    def __repr__(self) -> str:
        return f"Repeat({self.item!r}, depth={self.depth!r})"

    def sample(self, rng: Rng, given: Value = None) -> Items:
        depth = self.depths[rng.randrange(len(self.depths))]
        if given is None:
            return tuple([self.item.sample(rng) for _ in range(depth)])
        fixed = (*given, *[None] * (depth - len(given)))
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

    def picks(self, value: Value, path: Path = ()) -> Iterator[tuple[Path, str]]:
        for layer, item in enumerate(value):
            yield from self.item.picks(item, (*path, layer))

    def genes(self, value: Value, path: Path = ()) -> Iterator[Gene]:
        yield Gene(path, self.depth.role, len(value))
        for layer, item in enumerate(value):
            yield from self.item.genes(item, (*path, layer))

    def roles(self) -> set[Role]:
        return self.depth.roles() | (self.item.roles() if self.depths[-1] else set())

    def dimensions(self, name: str = "") -> Iterator[tuple[str, Choice]]:
        yield below(name, "depth"), self.depth
        yield from self.item.dimensions(self._inside(name))

    def replace_choices(self, choices: Mapping[str, Choice], name: str = "") -> Repeat:
        depth = choices.get(below(name, "depth"), self.depth)
        return Repeat(self.item.replace_choices(choices, self._inside(name)), depth=depth)

    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        yield below(name, "depth"), len(value)
        for item in value:
            yield from self.item.uses(item, self._inside(name))

    def _inside(self, name: str) -> str:
        """Parts of an item are named as if they were the stack's; an item without named parts is its `item`."""
        return below(name, "item") if isinstance(self.item, Choice | Repeat) else name

    def adapt(self, value: Value, rng: Rng) -> Items:
        items = value if isinstance(value, tuple) else ()
        depth = int(self.depth.adapt(len(items), rng) if isinstance(value, tuple) else self.depth.sample(rng))
        # Layers that the value does not have are made from its last one, as in mutation.
        sources = (*items, *items[-1:] * (depth - len(items)))
        return tuple(self.item.adapt(sources[k] if items else None, rng) for k in range(depth))

    def _corners(self) -> list[Items]:
        return [(corner,) * self.depths[-1] for corner in self.item._corners()]


def _check(item: Node, depth: Choice) -> None:
    if not isinstance(item, Node):
        raise UserError(f"Repeat has the item {item!r}, expected a node such as Struct(...) or Choice(...)")
    if not isinstance(depth, Choice):
        raise UserError(f"Repeat has depth={depth!r}, expected a Choice such as depth=Choice(12, 13, 14)")
    if not all(type(count) is int and count >= 0 for count in depth.values):
        raise UserError(f"Repeat has depth={depth!r}, expected whole numbers, none below 0")
