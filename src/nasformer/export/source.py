"""Source extraction: the code of some classes and functions together with all they need, and nothing else.

Starting from what is asked for, definitions are followed by name through our modules; a method is taken along only if
code that was taken can call it. So `cost`, and what is needed for it alone, is left out.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from nasformer.errors import UserError

Method = ast.FunctionDef | ast.AsyncFunctionDef
ALWAYS_CALLED = ("forward", "backward")
"""Methods that torch calls, beside the ones with two underscores that Python calls."""


@dataclass(frozen=True)
class Import:
    """What a name of a module stands for: a module, or something in it."""

    module: str
    name: str | None
    alias: str
    typing_only: bool = False

    def line(self) -> str:
        renamed = "" if self.alias == (self.name or self.module) else f" as {self.alias}"
        return f"from {self.module} import {self.name}{renamed}" if self.name else f"import {self.module}{renamed}"


@dataclass
class Module:
    """A parse_module module: its lines, and what its names stand for at the top level."""

    name: str
    lines: list[str]
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imports: dict[str, Import] = field(default_factory=dict)


@lru_cache(maxsize=256)
def parse_module(name: str) -> Module:
    loaded = import_module(name)
    if not getattr(loaded, "__file__", None):
        raise UserError(f"{name} has no source file, so no self-contained file can be made; put its layers into one")
    text = Path(str(loaded.__file__)).read_text(encoding="utf-8")
    module = Module(name, text.splitlines())
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | Method):
            module.definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            module.definitions |= {target.id: node for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for inner in node.body:
                module.imports |= imports_of(inner, loaded.__package__, typing_only=True)
        else:
            module.imports |= imports_of(node, loaded.__package__)
    return module


def imports_of(node: ast.stmt, package: str | None, typing_only: bool = False) -> dict[str, Import]:
    """What a statement imports, by the name that it gives."""
    names: list[tuple[str, str | None, str]] = []
    if isinstance(node, ast.Import):
        names = [(item.name, None, item.asname or item.name) for item in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
        source = resolve_name("." * node.level + (node.module or ""), package)
        names = [(source, item.name, item.asname or item.name) for item in node.names]
    return {alias: Import(module, name, alias, typing_only) for module, name, alias in names}


class Closure:
    """Definitions that some roots need, those of a module that is imported before those of the importing one."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.taken: dict[str, dict[str, set[str]]] = {}  # by module and name: the methods that are called
        self.imports: set[Import] = set()
        self.attributes: set[str] = set()  # that are used of anything
        self.self_attributes: set[tuple[type, str]] = set()  # that a class uses of self
        for root in roots:
            self.take(root.__module__, root.__name__)
        while self.take_called_methods():
            pass

    def take(self, module: str, name: str) -> None:
        """Take a definition, and then what it needs."""
        node = parse_module(module).definitions.get(name)
        if node is None:
            raise UserError(f"{module} does not define {name} at its top level, so no self-contained file can be made")
        if name in self.taken.get(module, {}):
            return
        self.taken.setdefault(module, {})[name] = set()
        if isinstance(node, ast.ClassDef):
            rest = [item for item in node.body if not isinstance(item, Method)]
            for part in (*node.bases, *node.decorator_list, *rest):
                self.take_names_in(part, module)
        else:
            self.take_names_in(node, module)

    def take_names_in(self, node: ast.AST, module: str, owner: type | None = None) -> None:
        """Take what a piece of code names, and note the attributes it uses."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                self.resolve(module, part.id)
            elif isinstance(part, ast.Attribute):
                of_self = isinstance(part.value, ast.Name) and part.value.id in ("self", "cls")
                if owner and (of_self or is_super(part.value)):
                    self.self_attributes.add((owner, part.attr))
                else:
                    self.attributes.add(part.attr)

    def resolve(self, module: str, name: str) -> None:
        parsed = parse_module(module)
        if name in parsed.definitions:
            return self.take(module, name)
        used = parsed.imports.get(name)
        if used is None:
            return None  # a builtin or a local name
        package = used.module.partition(".")[0]
        if package in ("torch", "torchvision") or package in sys.stdlib_module_names or used.typing_only:
            return self.imports.add(used)
        if package not in ("nasformer", module.partition(".")[0]):
            raise UserError(f"{module} needs {used.module}, but a self-contained file may need torch alone")
        if used.name is None or used.name != used.alias:
            raise UserError(f"{module} has `{used.line()}`; for a self-contained file import names, and as they are")
        if used.name in parse_module(used.module).imports:
            return self.resolve(used.module, used.name)
        return self.take(used.module, used.name)

    def take_called_methods(self) -> bool:
        """Take the methods that the code so far can call; whether there were any."""
        others = [(m, name, method) for m, name, method in self.methods() if method.name not in self.taken[m][name]]
        called = [(m, name, method) for m, name, method in others if self.calls(class_of(m, name), method.name)]
        for module, name, method in called:
            self.taken[module][name].add(method.name)
            self.take_names_in(method, module, class_of(module, name))
        return bool(called)

    def methods(self) -> Iterator[tuple[str, str, Method]]:
        for module, names in list(self.taken.items()):
            for name in list(names):
                node = parse_module(module).definitions[name]
                if isinstance(node, ast.ClassDef):
                    yield from ((module, name, item) for item in node.body if isinstance(item, Method))

    def calls(self, owner: type, method: str) -> bool:
        if method in ALWAYS_CALLED or method in self.attributes or (method.startswith("__") and method.endswith("__")):
            return True
        users = (user for user, attribute in self.self_attributes if attribute == method)
        return any(issubclass(owner, user) or issubclass(user, owner) for user in users)

    def text(self) -> str:
        """All that was taken, as source."""
        names = [name for module in self.taken for name in self.taken[module]]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserError(f"two modules define {', '.join(twice)}, which cannot go into one file; rename one of them")
        return "\n\n\n".join(
            definition_source(parse_module(module), name, self.taken[module][name])
            for module in self.in_order()
            for name in parse_module(module).definitions
            if name in self.taken[module]
        )

    def in_order(self) -> list[str]:
        """The modules, each after those that it imports from."""
        order: list[str] = []

        def visit(module: str) -> None:
            for used in parse_module(module).imports.values():
                if used.module in self.taken and used.module not in order:
                    visit(used.module)
            order.append(module)

        for module in self.taken:
            if module not in order:
                visit(module)
        return order


def class_of(module: str, name: str) -> type:
    return getattr(sys.modules[module], name)


def is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def definition_source(module: Module, name: str, methods: set[str]) -> str:
    """The lines of a definition without methods that nothing calls, doctests and comments for our tools."""
    node = module.definitions[name]
    first, last = line_span(module, node)
    lines: list[str | None] = list(module.lines[first:last])
    for item in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(item, Method) and item.name not in methods:
            start, end = line_span(module, item)
            lines[start - first : end - first] = [None] * (end - start)
    text = "\n".join(without_examples(line for line in lines if line is not None))
    text = re.sub(r"[ ]*# (type: ignore|noqa).*", "", text)
    text = re.sub(r"\n\s*\n(\s*\"\"\")(?=\n|$)", r"\n\1", text)  # nothing is left before the end of a docstring
    text = re.sub(r"(\"\"\"[^\n]*)\n\s*\"\"\"(?=\n|$)", r'\1"""', text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def line_span(module: Module, node: ast.stmt) -> tuple[int, int]:
    """Where a statement's lines begin, with its decorators and the comments above it, and where they end."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(item.lineno for item in decorators)]) - 1
    while first and module.lines[first - 1].lstrip().startswith("#"):
        first -= 1
    last = int(node.end_lineno or node.lineno)
    if module.lines[last : last + 1] and module.lines[last].startswith('"""'):  # it explains the constant above
        while not module.lines[last].endswith('"""'):
            last += 1
        last += 1
    return first, last


def without_examples(lines: Iterable[str]) -> Iterator[str]:
    skipping = False
    for line in lines:
        text = line.strip()
        if text.startswith(">>>"):
            skipping = True
        elif not text or text.endswith('"""'):
            skipping = False
        if not skipping:
            yield line


def import_lines(imports: Iterable[Import]) -> str:
    """Import statements: the standard library, torch, and what is for type checkers only."""
    for_types = {item for item in imports if item.typing_only}
    for_all = {item for item in imports if not item.typing_only}
    if for_types:
        for_all.add(Import("typing", "TYPE_CHECKING", "TYPE_CHECKING"))
    torch_too = {item for item in for_all if item.module.partition(".")[0] == "torch"}
    blocks = [import_block(for_all - torch_too), import_block(torch_too)]
    if for_types:
        blocks.append("if TYPE_CHECKING:\n" + textwrap.indent(import_block(for_types), "    "))
    return "\n\n".join(block for block in blocks if block)


def import_block(imports: Iterable[Import]) -> str:
    """Import statements in order, names of one module in one statement."""
    lines = sorted(item.line() for item in imports if item.name is None)
    for module in sorted({item.module for item in imports if item.name is not None}):
        names = {item.line().partition(" import ")[2] for item in imports if item.module == module and item.name}
        lines.append(f"from {module} import {', '.join(sorted(names, key=import_order))}")
    return "\n".join(lines)


def import_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions and modules."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2), name
