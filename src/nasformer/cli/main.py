"""The command line: `nasformer COMMAND --help` says what each command takes.

A command is a function in `commands/` whose only argument is a dataclass of options. Modules of commands import torch,
timm and matplotlib inside their functions, so that help and refusals come at once.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from nasformer.cli.parser import CommandParser, config_names, find_recipe, summary
from nasformer.cli.remote import remote_paths
from nasformer.errors import UserError, is_out_of_memory, suggest
from nasformer.utils.plugins import __version__, load_plugins
from nasformer.utils.schema import from_json, read_yaml
from nasformer.utils.units import OptionGroup

COMMANDS = {
    "run": "search",
    "plan": "search",
    "advise": "search",
    "train": "search",
    "search": "search",
    "evolve": "search",
    "retrain": "models",
    "finetune": "models",
    "extract": "models",
    "export": "models",
    "evaluate": "models",
    "predict": "models",
    "watch": "results",
    "doctor": "results",
    "compare": "results",
    "patterns": "results",
    "attention": "results",
    "spaces": "spaces",
    "cost": "spaces",
    "sample": "spaces",
    "profile": "prepare",
    "proxies": "proxies",
    "score": "proxies",
    "rank": "proxies",
    "pack": "prepare",
    "recipes": "spaces",
    "completion": "spaces",
}
"""The commands, each with the module in `commands/` that has it."""

SHARED = ("run", "plan", "train", "search", "evolve", "retrain", "finetune")
"""Commands that may share a config file: each takes its own options from it."""
LIST_MODULES = "write a module, or a list of modules"
MOST_WORDS = 1500  # characters of a message
OUT_OF_MEMORY = (
    "out of memory; take fewer images at a time (--train.batch-size, --train.accumulate, --batch-size, --probe-size), "
    "smaller ones (--img-size) or a smaller space"
)


@dataclass(frozen=True)
class Command:
    """A command by name: its function and the dataclass of its options."""

    name: str
    function: Callable[[Any, bool], int | None]
    options: type[OptionGroup]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. An error that the user can put right is one line on standard error, without a traceback."""
    open_streams()
    try:
        return run_command(list(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        return print_error(str(error))
    except KeyboardInterrupt as stop:
        where = f" {stop}" if str(stop) else ""
        return print_error(f"stopped{where}; the same command goes on from here", 130)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the reader of our output has gone, e.g. `| head`
        return 0
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return print_error(OUT_OF_MEMORY)
    except OSError as error:
        return print_error(describe_error(error))


def open_streams() -> None:
    """Makes standard output and error accept any text, even where they are closed or file names are not Unicode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def describe_error(error: OSError) -> str:
    """What the user can do about an error of the file system; other errors are ours and go on."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = "the disk is full" if error.errno != errno.EFBIG else "a file grew beyond what this system allows"
        again = "free some space, then run the same command again: it goes on from here"
        return f"{what} ({error.filename or 'while writing'}); {again}"
    if error.filename is None:
        raise error
    return f"cannot write or read {error.filename}: {error.strerror}; choose another path"


def print_error(message: str, code: int = 2) -> int:
    """Prints an error on one line of standard error and returns the exit code."""
    line = " ".join(message.split())
    if len(line) > MOST_WORDS:  # the start repeats what was typed, the end says what to do
        line = f"{line[: MOST_WORDS // 2]} … {line[-MOST_WORDS // 2 :]}"
    try:
        print(f"nasformer: {line}", file=sys.stderr)
    except (OSError, ValueError):  # standard error is closed
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    return code


def run_command(words: list[str]) -> int:
    """Runs the command of a command line, or prints help; returns the exit code."""
    plugins, words = split_imports(words)
    plugins += config_imports(words)
    if not words or words[0] in ("-h", "--help", "--help-all"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    load_plugins(plugins)
    command = find_command(words[0])
    parsed = make_parser(command).parse(words[1:])
    if parsed.options is None:
        print(parsed.help)
        return 0
    return call(command, parsed.options, parsed.json)


def call(command: Command, options: OptionGroup, as_json: bool) -> int:
    """Calls the function of a command, with local copies of remote paths and on the threads asked for."""
    with remote_paths(options) as options:
        threads: Any = getattr(options, "threads", "auto")
        if threads == "auto":
            return command.function(options, as_json) or 0
        from nasformer.utils.device import cpu_threads

        with cpu_threads(threads):
            return command.function(options, as_json) or 0


def print_json(content: Any) -> None:
    """Prints the result of a command, on one line."""
    print(json.dumps(content))


def split_imports(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits off the modules that `--import` names."""
    modules, rest, iterator = list[str](), list[str](), iter(words)
    for word in iterator:
        if word == "--import":
            modules.append(next(iterator, ""))
        elif word.startswith("--import="):
            modules.append(word.removeprefix("--import="))
        else:
            rest.append(word)
    if "" in modules:
        raise UserError("--import needs the name of a module, such as --import my_spaces")
    return modules, rest


def config_imports(words: Sequence[str]) -> list[str]:
    """The modules that config files name under `import`: their options may be those of a plugin's strategy."""
    paths = [word for before, word in pairwise(words) if before == "--config"]
    paths += [word.removeprefix("--config=") for word in words if word.startswith("--config=")]
    modules: list[str] = []
    for path in paths:
        if Path(path).is_fifo():
            continue  # can be read only once
        named = read_yaml(find_recipe(path)).get("import") or []
        modules += from_json(list[str], [named] if isinstance(named, str) else named, f"{path}, import", LIST_MODULES)
    return modules


def find_command(name: str) -> Command:
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}; {suggest(name, COMMANDS)}")
    function = getattr(import_module(f"nasformer.cli.commands.{COMMANDS[name]}"), name)
    return Command(name, function, get_type_hints(function)["options"])


def make_parser(command: Command) -> CommandParser[OptionGroup]:
    shared = config_names(find_command(name).options for name in SHARED)
    return CommandParser(command.name, command.options, shared)


def overview() -> str:
    lines = ["usage: nasformer COMMAND [options]   (nasformer COMMAND --help)", ""]
    lines += [f"  {name:10} {summary(find_command(name).options)}" for name in COMMANDS]
    lines += [
        "",
        "--import MODULE before or after a command adds spaces, families, proxies, strategies and tasks of your own.",
    ]
    return "\n".join([*lines, "Start with: nasformer run --config digits --out runs/demo"])


if __name__ == "__main__":
    sys.exit(main())
