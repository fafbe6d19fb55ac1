"""Command-line options: a dataclass of options to a parser, its help, and helpful errors.

The words of the command line become options in one pass (`parse`): names may be written with dashes or underscores, a
switch alone means true, `--config` files are read, filtered to the options of the command and overridden by what
stands beside them. jsonargparse then checks and converts the values.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Generic, TypeVar, get_type_hints

from nasformer.errors import UserError
from nasformer.utils.yaml import read_yaml

Options = TypeVar("Options")
WIDTH, HELP_COLUMN = 100, 30


@dataclass(frozen=True)
class Option:
    """One option of a command, as help and completion show it."""

    name: str
    annotation: str
    default: Any
    help: str
    owner: type

    @property
    def is_switch(self) -> bool:
        return self.annotation == "bool"

    @property
    def is_mapping(self) -> bool:
        return self.annotation.startswith("dict")

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True)
class Parsed(Generic[Options]):
    """What the words of a command line say: the options, or only that help is wanted."""

    options: Options | None
    json: bool = False
    help: str = ""


def list_options(kind: type, prefix: str = "") -> Iterator[Option]:
    """The options of a dataclass, those of nested dataclasses by dotted names."""
    hints, helps = get_type_hints(kind), attribute_docs(kind)
    for item in fields(kind):
        if is_dataclass(hints[item.name]):
            yield from list_options(hints[item.name], f"{prefix}{item.name}.")  # type: ignore[arg-type]
        else:
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            owner = next(base for base in reversed(kind.__mro__) if item.name in vars(base).get("__annotations__", {}))
            yield Option(f"{prefix}{item.name}", str(item.type), default, helps.get(item.name, ""), owner)


@cache
def attribute_docs(kind: type) -> dict[str, str]:
    """The strings below the fields of a class and of its bases, by the name of the field."""
    docs: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if is_dataclass(base)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for item, below in zip(body, body[1:], strict=False):
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
        kind: The dataclass of its options. Class attributes `positional` (options given without a name, the last one
            perhaps several times), `main` (what `--help` shows first) and `example` are read where it has them.
        shared: Options of other commands that a config file may hold too; they are left out.
    """

    def __init__(self, name: str, kind: type[Options], shared: Iterable[str] = ()) -> None:
        self.name, self.kind, self.shared = name, kind, frozenset(shared)
        self.options = {option.name: option for option in list_options(kind)}
        self.positional: Sequence[str] = getattr(kind, "positional", ())

    def parse(self, words: Sequence[str]) -> Parsed[Options]:
        if "--help-all" in words or {"-h", "--help"} & set(words):
            return Parsed(None, help=self.help(everything="--help-all" in words))
        configs, rest = self.split_configs([self.normalize(*pair) for pair in pairs(words)])
        as_json = "--json" in rest
        arguments = [f"--config={json.dumps(config, default=str)}" for config in configs]
        arguments += [word for word in rest if word != "--json"]
        return Parsed(self.convert(arguments), as_json)

    def normalize(self, word: str, following: str | None) -> str:
        """An option in the spelling of its field; a switch without a value means true."""
        if re.fullmatch(r"-[a-z]", word):
            word = f"-{word}"
        if not re.match(r"--[a-zA-Z]", word):
            return word
        written, equals, value = word.partition("=")
        name = written[2:].replace("-", "_")
        if name in ("json", "config"):
            return f"--{name}{equals}{value}"
        self.check_known(name, written)
        option = self.options.get(name)
        if option and option.is_switch and not equals and (following is None or following.startswith("--")):
            return f"--{name}=true"
        return f"--{name}{equals}{value}"

    def check_known(self, name: str, written: str) -> None:
        if name in self.options or any(o.is_mapping and name.startswith(f"{o.name}.") for o in self.options.values()):
            return
        if any(option.startswith(f"{name}.") for option in self.options):  # a whole group, such as --train '{...}'
            return
        close = difflib.get_close_matches(name, self.options, n=1)
        hint = f"did you mean {self.options[close[0]].flag}?" if close else f"see nasformer {self.name} --help"
        raise UserError(f"nasformer {self.name} has no option {written}; {hint}")

    def split_configs(self, words: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
        """The contents of the config files, and the other words."""
        configs, rest, iterator = list[dict[str, Any]](), list[str](), iter(words)
        for word in iterator:
            if word == "--config":
                configs.append(self.read_config(next(iterator, "")))
            elif word.startswith("--config="):
                configs.append(self.read_config(word.removeprefix("--config=")))
            else:
                rest.append(word)
        return configs, rest

    def read_config(self, path: str) -> dict[str, Any]:
        """A config file without the options of other commands, so that one file serves a whole run.

        What no command has is left in, and so refused as the typing error that it is.
        """
        from nasformer.cli.recipes import find_recipe

        content = read_yaml(find_recipe(path))
        own = {name.partition(".")[0] for name in self.options}
        config = {str(key).replace("-", "_"): value for key, value in content.items()}
        for key in config:
            first = key.partition(".")[0]
            if first not in own | self.shared:
                close = difflib.get_close_matches(first, own, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise UserError(f"{path} has the option {first}, which no command has{hint}")
        return {key: value for key, value in config.items() if key.partition(".")[0] in own}

    def convert(self, arguments: Sequence[str]) -> Options:
        from jsonargparse import ArgumentError

        parser = self.argument_parser()
        try:
            values = parser.instantiate(parser.parse_args(list(arguments)))
        except SystemExit:
            raise UserError(f"wrong options; see nasformer {self.name} --help") from None
        except ArgumentError as error:
            raise UserError(f"{tidy(error)}; see nasformer {self.name} --help") from None
        given = {item.name: getattr(values, item.name, None) for item in fields(self.kind)}  # type: ignore[arg-type]
        return self.kind(**{name: value for name, value in given.items() if value is not None})

    def argument_parser(self) -> Any:
        from jsonargparse import ArgumentParser

        parser = ArgumentParser(prog=f"nasformer {self.name}", exit_on_error=False, add_help=False)
        parser.add_argument("--config", action="config")
        for name in self.positional:
            several = self.options[name].annotation.startswith("list")
            parser.add_argument(name, nargs="*" if several else "?", default=None)
        parser.add_class_arguments(self.kind, skip=set(self.positional))
        return parser

    def help(self, everything: bool = False) -> str:
        """The help: what the command does, its main options (or all, by group), an example."""
        words = " ".join(f"[{name.upper()}]" for name in self.positional)
        lines = [f"usage: nasformer {self.name} {words}{' ' if words else ''}[options]", "", (self.kind.__doc__ or "")]
        main = [self.options[name] for name in getattr(self.kind, "main", self.options)]
        shown = [*(self.options[name] for name in self.positional), *main]
        lines += ["", *(line for option in dict.fromkeys(shown) for line in describe(option, self.positional))]
        rest = [option for option in self.options.values() if option not in shown]
        if everything:
            for owner in dict.fromkeys(option.owner for option in rest):
                lines += ["", (owner.__doc__ or owner.__name__).splitlines()[0]]
                lines += [line for option in rest if option.owner is owner for line in describe(option)]
        lines += [
            "",
            *describe_word("--config FILE", "a recipe: a YAML file of these options, or see `nasformer recipes`"),
        ]
        lines += describe_word("--json", "print the result as JSON")
        if rest and not everything:
            lines += describe_word("--help-all", f"{len(rest)} further options")
        if example := getattr(self.kind, "example", ""):
            lines += ["", "example:", *(f"  {line}" for line in example.splitlines())]
        return "\n".join(lines)


def pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each word with the one that follows it."""
    return zip(words, [*words[1:], None], strict=True)


def describe(option: Option, positional: Sequence[str] = ()) -> list[str]:
    if option.name in positional:
        return describe_word(option.name.upper(), option.help)
    default = f" (default: {option.default})" if option.default not in (None, "", [], {}, MISSING) else ""
    return describe_word(f"{option.flag} {metavar(option)}".rstrip(), option.help + default)


def describe_word(word: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH - HELP_COLUMN) or [""]
    indent = " " * HELP_COLUMN
    head = f"  {word}"
    if len(head) < HELP_COLUMN - 1:
        return [head.ljust(HELP_COLUMN) + wrapped[0], *(indent + line for line in wrapped[1:])]
    return [head, *(indent + line for line in wrapped)]


def metavar(option: Option) -> str:
    """What stands for the value: its choices, or the last part of its name.

    >>> metavar(Option("train.freeze", "Literal['optimizer', 'slices']", "optimizer", "", object))
    'optimizer|slices'
    """
    if option.is_switch:
        return ""
    choices = re.findall(r"Literal\[(.*?)\]", option.annotation)
    if choices:
        return "|".join(word.strip().strip("\"'") for word in choices[0].split(","))
    return option.name.rpartition(".")[2].upper()


def tidy(error: Exception) -> str:
    """The parser's message without its tree of types that were tried."""
    text = re.sub(r"Does not.*Subtypes: \[(.*?)\]\n.*Given", r"Expected one of \1. Got", str(error), flags=re.DOTALL)
    text = re.sub(r"<class '(\w+)'>", r"\1", re.sub(r'Parser key "([\w.]+)"', r"\1", text))
    lines = [line.strip(" -") for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else "wrong options"


def config_names(kinds: Iterable[type]) -> set[str]:
    """The top-level options of several commands, which a common config file may hold."""
    return {item.name for kind in kinds for item in fields(kind)}


def as_mapping(options: Any) -> Mapping[str, Any]:
    return {item.name: getattr(options, item.name) for item in fields(options)}
