"""Typed JSON and YAML: dataclasses to and from files, with errors that name the file and the field."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from nasformer.errors import UserError, one_line

T = TypeVar("T")
KeyPath = tuple[str | int, ...]  # the keys and positions that lead to a value, from the outside in

REMEDY = "restore the file or start in another folder"
NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false", types.NoneType: "null"}


def from_json(cls: type[T], data: Any, where: object, remedy: str = REMEDY) -> T:
    """Build a dataclass, or any other annotated type, from parsed JSON.

    Fields may be int, float (an int stays an int), str, bool, None, unions, list, tuple, dict with keys of str or int,
    Literal, Any, dataclasses, and classes that have their own `from_dict` and `to_dict`. A key that is missing takes
    the field's default, NaN becomes None where the field allows None, and keys without a field are ignored unless the
    dataclass says `refuse_unknown: ClassVar[bool] = True`.

    Args:
        where: The file that the data come from, for the error.
        remedy: What the user can do about wrong data.

    Raises:
        UserError: Names the file, the field, the value, and what was expected.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Winner:
    ...     params: int
    >>> from_json(Winner, {"params": 12}, "result.json")
    Winner(params=12)
    >>> from_json(Winner, {"params": "12"}, "result.json", remedy="restore it")
    Traceback (most recent call last):
    nasformer.errors.UserError: result.json: params is "12", expected an integer; restore it
    """
    try:
        return cast(T, _read(cls, data, ()))
    except _Mismatch as error:
        raise UserError(f"{where}{':' if error.path else ''} {error}; {remedy}") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply, expected {_describe(cls)}; {remedy}") from None


def to_json(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists and so on, ready for `json.dumps`; `from_json` reads it back."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if hasattr(value, "to_dict"):
        return to_json(value.to_dict())
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def is_version(value: Any, version: int) -> bool:
    """Whether a value is this version number; `true`, which equals 1 in Python, is not."""
    return type(value) is int and value == version


class _Mismatch(Exception):
    """A value is not what its annotation says."""

    def __init__(self, path: KeyPath, problem: str) -> None:
        super().__init__(f"{_dotted(path)} {problem}".lstrip())
        self.path = path


def _mismatch(annotation: Any, value: Any, path: KeyPath) -> _Mismatch:
    return _Mismatch(path, f"is {_show(value)}, expected {_describe(annotation)}")


def _read(annotation: Any, value: Any, path: KeyPath) -> Any:
    """The value, converted to its annotation."""
    origin = get_origin(annotation) or annotation
    if annotation is Any:
        return value
    if origin in (Union, types.UnionType):
        return _read_union(annotation, value, path)
    if origin is Literal:
        valid = any(value == choice and type(value) is type(choice) for choice in get_args(annotation))
    elif origin in NAMES:
        allowed = (int, float) if origin is float else origin
        valid = isinstance(value, allowed) and (origin is bool or not isinstance(value, bool))
    elif origin in (list, tuple, Sequence):
        return _read_items(annotation, value, path)
    elif isinstance(value, Mapping):
        return _read_object(annotation, value, path)
    else:
        valid = False
    if not valid:
        raise _mismatch(annotation, value, path)
    return value


def _read_union(annotation: Any, value: Any, path: KeyPath) -> Any:
    members, deepest = get_args(annotation), None
    if types.NoneType in members and (value is None or (isinstance(value, float) and math.isnan(value))):
        return None
    for member in members:
        try:
            return _read(member, value, path)
        except _Mismatch as error:
            if len(error.path) > len(deepest.path if deepest else path):
                deepest = error  # an object that is wrong inside: say where, not that it is wrong
    raise deepest or _mismatch(annotation, value, path)


def _read_items(annotation: Any, value: Any, path: KeyPath) -> list[Any] | tuple[Any, ...]:
    is_tuple, arguments = (get_origin(annotation) or annotation) is tuple, get_args(annotation) or (Any, ...)
    fixed = is_tuple and arguments[-1] is not ...
    if not isinstance(value, list | tuple) or (fixed and len(value) != len(arguments)):
        raise _mismatch(annotation, value, path)
    types_of_items = arguments if fixed else arguments[:1] * len(value)
    items = [_read(types_of_items[i], item, (*path, i)) for i, item in enumerate(value)]
    return tuple(items) if is_tuple else items


def _read_object(annotation: Any, data: Mapping[Any, Any], path: KeyPath) -> Any:
    cls: Any = get_origin(annotation) or annotation
    if cls in (dict, Mapping):
        key_type, item_type = get_args(annotation) or (str, Any)
        return {_read_key(key_type, key, path): _read(item_type, item, (*path, key)) for key, item in data.items()}
    arguments = None if hasattr(cls, "from_dict") else _read_fields(cls, data, path)
    try:
        return cls.from_dict(data) if arguments is None else cls(**arguments)
    except (KeyError, TypeError, ValueError, UserError) as error:  # from __post_init__ or from_dict
        raise _Mismatch(path, f"is wrong ({error})") from None


def _read_key(key_type: Any, key: Any, path: KeyPath) -> Any:
    """The key of a dict; JSON has strings only, so integers are read from those."""
    is_number = key_type is int and re.fullmatch(r"-?[0-9]{1,18}", str(key))
    return int(key) if is_number else _read(key_type, key, (*path, key))


def _read_fields(cls: Any, data: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    """The arguments of a dataclass that the data give."""
    annotations, arguments = _annotations(cls), {field.name: field for field in fields(cls) if field.init}
    unknown = [key for key in data if key not in arguments]
    if unknown and getattr(cls, "refuse_unknown", False):
        raise _Mismatch((*path, unknown[0]), f"is unknown, expected one of {', '.join(arguments)}")
    for name, field in arguments.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise _Mismatch((*path, name), f"is missing, expected {_describe(annotations[name])}")
    return {name: _read(annotations[name], data[name], (*path, name)) for name in arguments if name in data}


@cache
def _annotations(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _describe(annotation: Any) -> str:
    """What an annotation allows, in words for the user."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_describe, arguments)))
    if origin is Literal:
        return f"one of {', '.join(map(_show, arguments))}" if len(arguments) > 1 else _show(arguments[0])
    if origin is tuple and arguments and arguments[-1] is not ...:
        return f"a list of {len(arguments)}"
    return "a list" if origin in (list, tuple, Sequence) else NAMES.get(origin, "an object")


def _show(value: Any) -> str:
    """A value in short, on one line."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a huge integer"
    text = json.dumps(value, default=str)
    return text if len(text) <= 50 else f"{text[:49]}…"


def _dotted(path: KeyPath) -> str:
    """A path as code would write it: `winner.blocks[3].mlp_ratio`."""
    parts = [f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_show(key)}]" for key in path]
    return "".join(parts).removeprefix(".")


# YAML files of options, read without running code and without growing beyond their size.

MOST_BYTES = 1 << 20


class PlainLoader(yaml.SafeLoader):
    """YAML's safe loader without aliases, since a few nested ones can stand for billions of values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.YAMLError(
                f"line {event.start_mark.line + 1} has an alias (*{event.anchor}); write the value out"
            )
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, or an error that names the file."""
    try:
        with open(path, "rb") as file:  # read once: it may be a pipe
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read the config file {path}: {error.strerror or error}; check its path") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path} is larger than 1 MB; a config file holds a few options")
    try:
        loaded = yaml.load(content, Loader=PlainLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is not valid YAML ({one_line(error)}); fix that line") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} holds no options; write one a line, such as 'space: autoformer-tiny'")
    return loaded
