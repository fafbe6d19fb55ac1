"""Dimensions: the choices of a space by name, and the same space with other values for some of them.

A dimension is one Choice of the declaration, or the depth of a Repeat. Its name is the dotted path in the declaration:
`stage1.embed_dim`, `stage1.blocks.depth`, and `stage1.blocks.num_heads` for that gene of all the blocks. Where there
are alternatives, the name of the option is part of it: `stage1.blocks.conv.kernel`. The pick of a OneOf is not one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nasformer.errors import UserError, suggest
from nasformer.space.arch import Arch, Value
from nasformer.space.nodes import Choice, Node, Scalar, Struct, corners


def dimensions(node: Node) -> dict[str, Choice]:
    """The dimensions of a space by name, in the order of the declaration.

    >>> from nasformer import OneOf, Repeat
    >>> block = OneOf(conv=Struct(kernel=Choice(3, 5)), attention=Struct(heads=Choice(2, 4)))
    >>> list(dimensions(Struct(width=Choice(16, 24), blocks=Repeat(block, depth=Choice(1, 2)))))
    ['width', 'blocks.depth', 'blocks.conv.kernel', 'blocks.attention.heads']
    """
    choices: dict[str, Choice] = {}
    for name, choice in node.dimensions():
        if name in choices:
            raise UserError(f"the space has two dimensions named {name}; give one of these fields another name")
        choices[name] = choice
    return choices


def with_choices(node: Struct, choices: Mapping[str, Sequence[Scalar]]) -> Struct:
    """The same space with other values for some dimensions, converted to the types that the space has there.

    >>> space = Struct(width=Choice(16, 24), ratio=Choice(2.0, 3.0))
    >>> with_choices(space, {"width": [24, 32.0], "ratio": [2, 2.5]})
    Struct(width=Choice(24, 32), ratio=Choice(2.0, 2.5))
    >>> with_choices(space, {"widht": [24]})
    Traceback (most recent call last):
    nasformer.errors.UserError: there is no dimension 'widht'; did you mean width?
    """
    declared = dimensions(node)
    for name in choices:
        check_dimension(name, declared)
    return node.replace_choices({name: choice_like(declared[name], values, name) for name, values in choices.items()})


def uses(node: Node, arch: Arch) -> Iterator[tuple[str, Scalar]]:
    """Each dimension that an arch uses, with its value: once for every time it occurs, the depth of a Repeat once.

    >>> from nasformer import Repeat
    >>> space = Struct(width=Choice(16, 24), blocks=Repeat(Struct(heads=Choice(2, 4)), depth=Choice(1, 2)))
    >>> list(uses(space, space.largest()))
    [('width', 24), ('blocks.depth', 2), ('blocks.heads', 4), ('blocks.heads', 4)]
    """
    return node.uses(arch)


def values_beyond_corners(node: Struct) -> dict[str, Scalar]:
    """Values above those of all `corners` of the space, which only rules can bring about.

    >>> from nasformer import Rule
    >>> rule = Rule(("one", "two"), lambda one, two: two % one == 0, "one must divide two")
    >>> values_beyond_corners(Struct(rule, one=Choice(2, 5), two=Choice(5, 8)))
    {'two': 8}
    """
    reached: dict[str, int] = {}
    declared = dimensions(node)
    for arch in corners(node):
        for name, value in uses(node, arch):
            reached[name] = max(declared[name].position(value), reached.get(name, 0))
    return {
        name: value
        for name, choice in declared.items()
        for value in choice.values[reached.get(name, len(choice.values)) + 1 :]
        if _has_members(node, name, Choice(value))
    }


def _has_members(node: Struct, name: str, choice: Choice) -> bool:
    try:
        node.replace_choices({name: choice})
    except UserError:  # the rules leave nothing
        return False
    return True


def check_dimension(name: str, declared: Iterable[str]) -> None:
    """Raises a UserError that says which dimensions there are, unless the name is one of them."""
    names = list(declared)
    if name not in names:
        # A name without its stage means the dimension that ends alike.
        alike = next((f"did you mean {other}?" for other in names if other.endswith(f".{name}")), "")
        raise UserError(f"there is no dimension {name!r}; {suggest(name, names, alike)}")


# New values take the types of the old ones: whole numbers where a dimension has them, floats where it has only these.


def choice_like(base: Choice, values: Sequence[Scalar], name: str) -> Choice:
    """A Choice of other values, with the role of the base and its types of values."""
    if not values:
        raise UserError(f"{name} has no values, expected at least one, such as {format_value(base.values[0])}")
    converted = [value_like(base, value, name) for value in values]
    try:
        return Choice(*converted, role=base.role)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def value_like(base: Choice, value: Value, name: str) -> Scalar:
    """A value in the type that the base has for it; UserError where it has no such values."""
    if base.contains(value):
        return base.validate(value)
    types = {type(scalar) for scalar in base.values}
    if types == {str} and isinstance(value, str):
        return value
    if types <= {int, float} and isinstance(value, int | float) and not isinstance(value, bool):
        return _number_like(base, value, name)
    wanted = "numbers like" if types <= {int, float} else "texts like" if types == {str} else "any of"
    raise UserError(f"{name} has the value {format_value(value)!r}, expected {wanted} {format_values(base.values)}")


def _number_like(base: Choice, value: float, name: str) -> Scalar:
    types = {type(scalar) for scalar in base.values}
    whole = float(value).is_integer()
    if not whole and float not in types:
        raise UserError(f"{name} has the value {value}, expected whole numbers like {format_values(base.values)}")
    if value <= 0 and all(number > 0 for number in base.values):  # type: ignore[operator]
        raise UserError(f"{name} has the value {format_value(value)}, expected numbers above 0")
    return int(value) if whole and int in types else float(value)


def format_value(value: Scalar) -> str:
    """A value as people write it: 3 for 3.0, true for True.

    >>> [format_value(value) for value in (3, 3.0, 3.5, True, "gelu")]
    ['3', '3', '3.5', 'true', 'gelu']
    """
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def format_values(values: Sequence[Scalar]) -> str:
    return ",".join(map(format_value, values))
