"""Parser of command lines: words to a dataclass of options, with help and errors that say what to do.

Names may be written with dashes or underscores, and a switch alone means true. `--config` files are filtered to the
options of the command, and options on the command line override them. Types are checked as those of every other file
(`utils/schema.py`), against the annotations of the dataclass.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from nasformer.errors import UserError, suggest
from nasformer.utils.schema import PlainLoader, from_json, read_yaml
from nasformer.utils.units import OptionGroup

Options = TypeVar("Options", bound=OptionGroup)
Tree = dict[str, Any]
WIDTH, HELP_COLUMN = 100, 30
COMMON_FLAGS = ["--config", "--json", "--help", "--help-all"]
"""What every command takes beside its own options."""


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Args:
        name: As it is written, with dots for groups: `train.epochs`.
        path: The fields that lead to it.
        annotation: The type of its value.
        group: What it is listed under.
    """

    name: str
    path: tuple[str, ...]
    annotation: Any
    default: Any
    help: str
    group: str

    @property
    def flag(self) -> str:
        return ("--" if len(self.name) > 1 else "-") + self.name.replace("_", "-")

    @property
    def is_mapping(self) -> bool:
        return get_origin(self.annotation) is dict


@dataclass(frozen=True)
class Parsed(Generic[Options]):
    """Result of parsing: the options, or the text of the help."""

    options: Options | None
    json: bool = False
    help: str = ""


def list_options(kind: type, name: str = "", path: tuple[str, ...] = ()) -> Iterator[Option]:
    """The options of a dataclass; those of nested dataclasses have dotted names.

    An `OptionGroup` may have further options and groups that others declare.
    """
    group = option_group(kind)
    hints, helps, (holder, groups) = get_type_hints(kind), attribute_docs(kind), group.declared_groups()
    declared = group.declared_options()
    for item in fields(kind):
        if is_dataclass(hints[item.name]):
            yield from list_options(hints[item.name], f"{name}{item.name}.", (*path, item.name))
        elif item.name == holder:
            for key, options in groups.items():
                yield from list_options(options, f"{name}{key}.", (*path, holder, key))
        elif not (declared and item.name == "options"):
            owner = next(base for base in reversed(kind.__mro__) if item.name in vars(base).get("__annotations__", {}))
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            where = (f"{name}{item.name.rstrip('_')}", (*path, item.name))  # from_ is a field, --from its option
            yield Option(*where, hints[item.name], default, helps.get(item.name, ""), summary(owner))
    for option in declared:
        where = (f"{name}{option.name}", (*path, "options", option.name))
        yield Option(*where, option.annotation, None, option.help, summary(kind))


def option_group(kind: type) -> type[OptionGroup]:
    """The dataclass; in place of a plain one the base of all groups, which declares nothing more."""
    return kind if issubclass(kind, OptionGroup) else OptionGroup


def summary(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).splitlines()[0]


@cache
def attribute_docs(kind: type) -> dict[str, str]:
    """The strings below the fields of a class and of its bases, by the name of the field."""
    docs: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if is_dataclass(base)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for item, below in pairwise(body):
            if (
                isinstance(item, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                docs[item.target.id] = " ".join(str(below.value.value).split())  # type: ignore[union-attr]
    return docs


class CommandParser(Generic[Options]):
    """The parser of one command.

    Args:
        name: The command.
        kind: The dataclass of its options.
        shared: Options of other commands that a config file may hold too; they are left out.
    """

    def __init__(self, name: str, kind: type[Options], shared: Iterable[str] = ()) -> None:
        self.name, self.kind, self.shared = name, kind, frozenset(shared)
        self.options = {option.name: option for option in list_options(kind)}
        self.positional = kind.positional

    def parse(self, words: Sequence[str]) -> Parsed[Options]:
        if "--help-all" in words or {"-h", "--help"} & set(words):
            return Parsed(None, help=self.help(everything="--help-all" in words))
        tree, written, as_json = Tree(), Tree(), False
        named, unnamed = self.split(words)
        for name, text in named:
            if name == "json":
                as_json = True
            elif name == "config":
                merge(tree, self.read_config(text))
            else:
                self.set(written, name, text)
        self.set_positional(written, unnamed)
        merge(tree, written)  # what is given on the command line overrides config files, wherever it stands
        return Parsed(self.build(self.kind, tree), as_json)

    def split(self, words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
        """Splits words into options with their values, and words without a name."""
        named, unnamed, queue = list[tuple[str, str]](), list[str](), list(words)
        while queue:
            word = queue.pop(0)
            if not re.match(r"--?[a-zA-Z]", word):
                unnamed.append(word)
                continue
            written, equals, value = word.partition("=")
            name = self.find(written)
            if equals or name == "json":
                named.append((name, value))
            elif self.is_switch(name) and (not queue or queue[0].startswith("--")):
                named.append((name, "true"))
            elif not queue:
                raise UserError(f"{written} needs a value; see nasformer {self.name} --help")
            else:
                named.append((name, queue.pop(0)))
        return named, unnamed

    def find(self, written: str) -> str:
        """The name of an option from its flag; UserError where the command has no such option."""
        name = written.lstrip("-").replace("-", "_")
        if name in self.options or name in ("json", "config") or self.is_group(name) or self.is_in_mapping(name):
            return name
        flags = {flag.lstrip("-"): flag for flag in [option.flag for option in self.options.values()] + COMMON_FLAGS}
        plain = written.lstrip("-").replace("_", "-")
        close = [flag for flag in flags if flag.startswith(plain)] or difflib.get_close_matches(plain, flags, n=1)
        hint = f"did you mean {flags[close[0]]}?" if close else f"see nasformer {self.name} --help"
        raise UserError(f"nasformer {self.name} has no option {written}; {hint}")

    def is_switch(self, name: str) -> bool:
        return name in self.options and bool in members_of(self.options[name].annotation)

    def is_group(self, name: str) -> bool:
        return any(option.startswith(f"{name}.") for option in self.options)

    def is_in_mapping(self, name: str) -> bool:
        """Whether it names a key of an option that is a mapping, such as model.drop_path_rate."""
        return any(option.is_mapping and name.startswith(f"{option.name}.") for option in self.options.values())

    def set(self, tree: Tree, name: str, text: str) -> None:
        """Puts the value of an option into the tree of options."""
        if name in self.options:
            option = self.options[name]
            value = check(option.flag, option.annotation, from_text(option.annotation, text))
            set_path(tree, option.path, value)
        elif self.is_group(name):  # --train '{epochs: 3}'
            merge(tree, self.normalize({name: from_text(dict[str, Any], text)}, f"--{name}"))
        else:  # --model.drop_path_rate 0.1
            set_path(tree, tuple(name.split(".")), from_text(Any, text))

    def set_positional(self, tree: Tree, words: Sequence[str]) -> None:
        rest = list(words)
        for name in self.positional:
            option = self.options[name]
            if get_origin(option.annotation) is list:
                set_path(tree, option.path, rest)
                rest = []
            elif rest:
                value = from_text(option.annotation, rest.pop(0))
                set_path(tree, option.path, check(name.upper(), option.annotation, value))
        if rest:
            raise UserError(f"nasformer {self.name} cannot read {rest[0]!r}; see nasformer {self.name} --help")

    def read_config(self, path: str) -> Tree:
        """A config file without the options of other commands, so that one file serves a whole run."""
        content = {str(key).replace("-", "_"): value for key, value in read_yaml(find_recipe(path)).items()}
        content.pop("import", None)  # modules of plugins, which are imported by now
        names = {name.partition(".")[0] for name in self.options}
        for key in content:
            first = key.partition(".")[0]
            if first not in names | self.shared:
                hint = suggest(first, names | self.shared, f"see nasformer {self.name} --help")
                raise UserError(f"{path} has the option {first}, which no command has; {hint}")
        return self.normalize({key: value for key, value in content.items() if key.partition(".")[0] in names}, path)

    def normalize(self, content: Mapping[str, Any], where: str, prefix: str = "") -> Tree:
        """The content of a config file as a tree of options, each of its type."""
        tree = Tree()
        for key, value in content.items():
            name = f"{prefix}{str(key).replace('-', '_')}"
            if name in self.options:
                option = self.options[name]
                text = isinstance(value, str) and option.annotation is not str
                value = from_text(option.annotation, value) if text else value
                set_path(tree, option.path, check(f"{where}: {name}", option.annotation, value))
            elif self.is_group(name) and isinstance(value, Mapping):
                merge(tree, self.normalize(value, where, f"{name}."))
            elif self.is_group(name):
                raise UserError(f"{where}: {name} is {value!r}, expected options below it, each on a line of its own")
            elif self.is_in_mapping(name):
                set_path(tree, tuple(name.split(".")), value)
            else:
                hint = suggest(name, self.options, f"see nasformer {self.name} --help-all")
                raise UserError(f"{where} has the option {name}, which nasformer {self.name} does not have; {hint}")
        return tree

    def build(self, kind: type, tree: Tree) -> Any:
        """The dataclass with the values of the tree."""
        hints, (holder, groups) = get_type_hints(kind), option_group(kind).declared_groups()
        values = {
            name: self.build(hints[name], value) if is_dataclass(hints[name]) else value for name, value in tree.items()
        }
        if holder in values:
            values[holder] = {name: self.build(groups[name], inner) for name, inner in values[holder].items()}
        return kind(**values)

    def help(self, everything: bool = False) -> str:
        """The help: what the command does, its main options (or all, by group), an example."""
        words = "".join(f"[{name.upper()}] " for name in self.positional)
        lines = [f"usage: nasformer {self.name} {words}[options]", "", self.kind.__doc__ or ""]
        main = [self.options[name] for name in self.kind.main or self.options]
        shown = list(
            {option.name: option for option in (*map(self.options.__getitem__, self.positional), *main)}.values()
        )
        lines += ["", *(line for option in shown for line in describe(option, self.positional))]
        rest = [option for option in self.options.values() if option not in shown]
        if everything:
            for group in dict.fromkeys(option.group for option in rest):
                lines += ["", group, *(line for option in rest if option.group == group for line in describe(option))]
        lines += ["", *columns("--config FILE", "a YAML file of these options, or a recipe of `nasformer recipes`")]
        lines += columns("--json", "print the result as JSON")
        if rest and not everything:
            lines += columns("--help-all", f"{len(rest)} further options")
        if example := self.kind.example:
            lines += ["", "example:", *(f"  {line}" for line in example.splitlines())]
        return "\n".join(lines)


def from_text(annotation: Any, text: str) -> Any:
    """The value of a text, by its type. A text that fits no type is returned as it is, and refused later.

    >>> from_text(int, "12"), from_text(float, "1e-3"), from_text(bool | Literal["auto"], "auto"), from_text(str, "12")
    (12, 0.001, 'auto', '12')
    >>> from_text(list[str], "accuracy,-params"), from_text(dict[str, Any], "{depth: 0.3}"), from_text(int | None, "")
    (['accuracy', '-params'], {'depth': 0.3}, None)
    """
    members = members_of(annotation)
    if str in members:
        return None if types.NoneType in members and text in ("null", "None") else text
    if get_origin(members[0]) is list and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    if float in members:
        try:
            return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
        except ValueError:
            pass
    try:
        return yaml.load(text, Loader=PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError):  # no YAML, a day that does not exist, a huge number
        return text


def members_of(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; of any other annotation, itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def check(name: str, annotation: Any, value: Any) -> Any:
    """The value if it has its type, else UserError. Unlike in our files, NaN is no value of an option."""
    if isinstance(value, float) and math.isnan(value):
        raise UserError(f"{name} is nan; give a number")
    if get_origin(annotation) is Literal and value not in get_args(annotation):
        raise UserError(f"{name} is {value!r}; choose one of {', '.join(map(str, get_args(annotation)))}")
    return from_json(annotation, value, name, remedy="give another value")


def set_path(tree: Tree, path: Sequence[str], value: Any) -> None:
    *groups, last = path
    for group in groups:
        tree = tree.setdefault(group, {})
        if not isinstance(tree, dict):
            raise UserError(
                f"{'.'.join(path)} is an option within {group}, which has the value {tree!r}; give one of them"
            )
    tree[last] = value


def merge(tree: Tree, other: Tree) -> None:
    """Merges another tree into the tree."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            merge(tree[key], value)
        else:
            tree[key] = value


def describe(option: Option, positional: Sequence[str] = ()) -> list[str]:
    if option.name in positional:
        return columns(option.name.upper(), option.help)
    default = f" (default: {option.default})" if option.default not in (None, "", [], {}, MISSING) else ""
    return columns(f"{option.flag} {value_name(option)}".rstrip(), option.help + default)


def columns(word: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH - HELP_COLUMN) or [""]
    indent, head = " " * HELP_COLUMN, f"  {word}"
    if len(head) < HELP_COLUMN - 1:
        return [head.ljust(HELP_COLUMN) + wrapped[0], *(indent + line for line in wrapped[1:])]
    return [head, *(indent + line for line in wrapped)]


def value_name(option: Option) -> str:
    """The placeholder of a value in help: its choices, or the last part of its name.

    >>> value_name(Option("train.freeze", (), Literal["optimizer", "slices"], "optimizer", "", ""))
    'optimizer|slices'
    >>> value_name(Option("train.compile", (), bool | Literal["auto"], False, "", ""))
    'true|false|auto'
    """
    if option.annotation is bool:
        return "" if not option.default else "true|false"
    members = members_of(option.annotation)
    if members[0] is bool and get_origin(members[1]) is Literal:
        return "|".join(("true", "false", *get_args(members[1])))
    if get_origin(option.annotation) is Literal:
        return "|".join(map(str, get_args(option.annotation)))
    return option.name.rpartition(".")[2].upper()


def config_names(kinds: Iterable[type[OptionGroup]]) -> set[str]:
    """The top-level options of several commands, which a common config file may hold."""
    return {name for kind in kinds for name in (*(item.name for item in fields(kind)), *kind.declared_groups()[1])}


# Recipes that travel with the package: YAML files of options, by name.


def recipe_folder() -> Path:
    """The folder of the recipes: inside the package, or beside the sources of a clone."""
    return Path(str(files("nasformer"))) / "recipes"


def list_recipes() -> dict[str, str]:
    """What each recipe is for: the first sentence of its comment."""
    paths = sorted(recipe_folder().glob("*.yaml"), key=lambda path: path.stem)
    return {path.stem: first_sentence(path.read_text(encoding="utf-8")) for path in paths}


def first_sentence(recipe: str) -> str:
    """The first sentence of a recipe's comment, which may run over lines and end before a command.

    >>> first_sentence("# Demo (Li et al. 2021), in two\\n# minutes. Then more.\\nspace: s\\n")
    'Demo (Li et al. 2021), in two minutes.'
    >>> first_sentence("# Retraining, after the demo:\\n#   nasformer retrain\\n")
    'Retraining, after the demo.'
    """
    comment = re.match(r"(?:# \S.*\n)*", recipe)
    text = " ".join(line.removeprefix("# ") for line in comment[0].splitlines()) if comment else ""
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0].rstrip(".:") + "."


def find_recipe(name: str) -> Path:
    """A config file by its path, or a recipe that comes with nasformer by its name."""
    path = Path(name)
    if not name or (path.exists() and not path.is_dir()):  # a folder may have a recipe's name
        return path
    recipe = recipe_folder() / f"{path.name.removesuffix('.yaml')}.yaml"
    if path.parent.name in ("", "recipes") and recipe.exists():
        return recipe
    hint = suggest(path.stem, list_recipes(), "`nasformer recipes` lists those that come with nasformer")
    raise UserError(f"there is no config file {name}; {hint}")
