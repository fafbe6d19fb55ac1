"""The command line: `nasformer COMMAND --help` says what each command takes.

A command is a dataclass of options (`config*.py`) and a function (`commands/`). Options may be written with dashes
or underscores, and come from a YAML file (``--config FILE.yaml``), which options given beside it override. A file that
was written for `run` or `evolve` serves other commands too: what they do not have of it is left out.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from nasformer.cli import config as configs
from nasformer.cli import config as results
from nasformer.errors import UserError

COMMANDS: dict[str, tuple[type, str | None]] = {
    "spaces": (configs.SpacesCommand, "name"),
    "cost": (configs.CostCommand, None),
    "sample": (configs.SampleCommand, None),
    "profile": (configs.ProfileCommand, None),
    "plan": (configs.PlanCommand, None),
    "proxies": (configs.ProxiesCommand, "name"),
    "score": (configs.ScoreCommand, None),
    "rank": (configs.RankCommand, None),
    "train": (configs.TrainCommand, None),
    "search": (configs.SearchCommand, None),
    "evolve": (configs.EvolveCommand, None),
    "patterns": (results.PatternsCommand, "runs"),
    "compare": (results.CompareCommand, "runs"),
    "retrain": (configs.RetrainCommand, "run"),
    "finetune": (configs.FinetuneCommand, "run"),
    "doctor": (results.DoctorCommand, "run"),
    "extract": (results.ExtractCommand, "run"),
    "export": (results.ExportCommand, "run"),
    "evaluate": (results.EvaluateCommand, "model"),
    "attention": (results.AttentionCommand, "model image"),
    "run": (configs.RunCommand, None),
}
"""Each command's options, and which of them are given without a name; one that is a list, several times."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; what the user can put right is one line on standard error, and no traceback."""
    try:
        return run_command(list(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        return complain(str(error))
    except KeyboardInterrupt:
        return complain("stopped; the same command goes on from here", 130)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the reader of our output has gone, e.g. `| head`
        return 0
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return complain(
                f"the disk is full ({error.filename or 'while writing'}); free some space, then run the "
                "same command again: it goes on from here"
            )
        if error.filename is None:
            raise
        return complain(f"cannot write or read {error.filename}: {error.strerror}; choose another path")


def complain(message: str, code: int = 2) -> int:
    print(f"nasformer: {' '.join(message.split())}", file=sys.stderr)
    return code


def run_command(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0
    if argv[0] == "--version":
        import nasformer

        print(nasformer.__version__)
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}; there are: {', '.join(COMMANDS)}")
    options, as_json = parse(name, rest)
    if options is not None:
        from nasformer.cli import commands

        return getattr(commands, name)(options, as_json) or 0
    return 0


def overview() -> str:
    lines = ["usage: nasformer COMMAND [options]   (nasformer COMMAND --help)", ""]
    lines += [f"  {name:10} {(options.__doc__ or '').splitlines()[0]}" for name, (options, _) in COMMANDS.items()]
    return "\n".join([*lines, "", "Start with: nasformer run --config recipes/digits.yaml --out runs/demo"])


def parse(name: str, argv: list[str]) -> tuple[Any, bool]:
    """The command's options, or None where help was printed; and whether JSON is wanted."""
    from jsonargparse import ArgumentError

    parser = make_parser(name)
    try:
        found = parser.parse_args(narrowed(switched(underscored(argv), COMMANDS[name][0]), COMMANDS[name][0]))
    except SystemExit as stop:
        if stop.code:
            raise UserError(f"wrong options; see nasformer {name} --help") from None
        return None, False
    except ArgumentError as error:
        raise UserError(f"{tidy(error)}; see nasformer {name} --help") from None
    values, kind = parser.instantiate(found), COMMANDS[name][0]
    known = {item.name for item in fields(kind) if getattr(values, item.name, None) is not None}
    return kind(**{item: getattr(values, item) for item in known}), bool(values.json)


def make_parser(name: str) -> Any:
    from jsonargparse import ArgumentParser, set_parsing_settings

    set_parsing_settings(docstring_parse_attribute_docstrings=True)  # the strings below our fields are their help

    class Parser(ArgumentParser):
        def format_help(self) -> str:
            return re.sub(r"--[\w.]+", lambda option: option[0].replace("_", "-"), super().format_help())

    kind, positional = COMMANDS[name]
    places = (positional or "").split()
    several = {place for place in places if isinstance(getattr(kind(), place), list)}
    shown = "".join(f"[{f'{place.upper()[:-1]} ...' if place in several else place.upper()}] " for place in places)
    usage = f"nasformer {name} {shown}[options]"
    parser = Parser(prog=f"nasformer {name}", usage=usage, description=kind.__doc__, exit_on_error=False)
    parser.add_argument("--config", action="config", help="a YAML file of these options")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    for place in places:
        parser.add_argument(place, nargs="*" if place in several else "?", default=None, help=f"the {place}")
    parser.add_class_arguments(kind, skip=set(places))
    return parser


def underscored(argv: list[str]) -> list[str]:
    """Options in the parser's spelling: --max-params becomes --max_params, -n becomes --n."""

    def spelled(word: str) -> str:
        if re.fullmatch(r"-[a-z]", word) and word != "-h":
            return f"-{word}"
        if not re.match(r"--[a-z]", word):
            return word
        option, equals, value = word.partition("=")
        return "--" + option[2:].replace("-", "_") + equals + value

    return [spelled(word) for word in argv]


def switched(argv: list[str], kind: type) -> list[str]:
    """A switch alone, such as --download, means --download=true."""
    switches = {f"--{item.name}" for item in fields(kind) if str(item.type).startswith("bool")}

    def alone(place: int) -> bool:
        return argv[place] in switches and (place + 1 == len(argv) or argv[place + 1].startswith("--"))

    return [f"{word}=true" if alone(place) else word for place, word in enumerate(argv)]


def narrowed(argv: list[str], kind: type) -> list[str]:
    """Config files in which a command finds its own options only, so that one for `run` or `evolve` serves others too.

    What these do not have either is left in, and so refused as the typing error that it is.
    """
    known = {item.name for command in (configs.RunCommand, configs.EvolveCommand) for item in fields(command)}
    other = known - {item.name for item in fields(kind)}
    return [
        narrowed_file(word.removeprefix("--config="), other, word)
        if word.startswith("--config=") or argv[place - 1 : place] == ["--config"]
        else word
        for place, word in enumerate(argv)
    ]


def narrowed_file(path: str, other: set[str], word: str) -> str:
    """The word of the command line that names the file; or what it holds instead, where there is something to drop."""
    import json

    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return word  # the parser says what is wrong with it
    if not isinstance(found, dict) or not any(str(key).partition(".")[0] in other for key in found):
        return word
    kept = {key: value for key, value in found.items() if str(key).partition(".")[0] not in other}
    return word.removesuffix(path) + json.dumps(kept, default=str)


def tidy(error: Exception) -> str:
    """The parser's message, without its tree of types it tried."""
    text = re.sub(r"Does not.*Subtypes: \[(.*?)\]\n.*Given", r"Expected one of \1. Got", str(error), flags=re.DOTALL)
    text = re.sub(r"<class '(\w+)'>", r"\1", re.sub(r'Parser key "([\w.]+)"', r"\1", text))
    lines = [line.strip(" -") for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else "wrong options"


if __name__ == "__main__":
    sys.exit(main())
