"""Standalone Python: a model as one file that needs only torch (and Pillow, to read images).

Its layers are those that the model has run with all along, cut out of our source files, and so is the
preprocessing: there is no second implementation that could differ.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import nasformer
from nasformer.data.decode import MODES, Preprocessing, converted, resize_and_crop, upright
from nasformer.errors import UserError
from nasformer.export.safetensors_reader import read_safetensors
from nasformer.layers.segmentation import fitted_size
from nasformer.layers.vqa import encode, word_numbers
from nasformer.models.base import Backbone, Segment
from nasformer.models.storage import preprocessing_of

# Source extraction: the code of some classes and functions together with all they need, and nothing else.
#
# Starting from what is asked for, definitions are followed by name through our modules; a method is taken along only if
# code that was taken can call it. So `cost`, and what is needed for it alone, is left out.


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
    """A parsed module: its lines, and what its names stand for at the top level."""

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


WIDTH = 120
ANSWERS = {
    "classify": ("classes", "with their probabilities"),
    "segment": ("mask", "the class of every pixel"),
    "detect": ("objects", "class, score and box of each"),
    "vqa": ("answers", "with their probabilities"),
}
"""What `predict` gives, by task; other tasks have none in the file."""

LOAD = '''
def load(weights: str | Path = WEIGHTS, device: str = "cpu") -> Model:
    """The trained network, ready for use."""
    network = Model()
    network.load_state_dict(read_safetensors(weights))
    return network.to(device).eval()
'''

NORMALISE = '''
def normalise(images: Tensor) -> Tensor:
    """Images [batch, channels, rows, columns], bytes or floats in 0..1, as the network saw them in training."""
    images = images / 255 if images.dtype == torch.uint8 else images
    mean, std = (torch.tensor(values, device=images.device).reshape(1, -1, 1, 1) for values in (MEAN, STD))
    return (images - mean) / std
'''

PREDICT = '''
def preprocess(image: str | Path | Image) -> Tensor:
    """An image file or a Pillow image as the network saw images in evaluation: [1, channels, rows, columns]."""
    from PIL import Image

    opened = Image.open(image) if isinstance(image, str | Path) else image
    view = converted(upright(opened), IN_CHANS)
    view = resize_and_crop(view, IMG_SIZE, CROP_PCT, INTERPOLATION)
    pixels = torch.frombuffer(bytearray(view.tobytes()), dtype=torch.uint8)
    return normalise(pixels.view(1, *IMG_SIZE, IN_CHANS).permute(0, 3, 1, 2))


@torch.no_grad()
def predict(image: str | Path | Image, network: Model | None = None) -> list[tuple[str, float]]:
    """The classes of an image file or a Pillow image with their probabilities, the most probable first."""
    network = load() if network is None else network
    images = preprocess(image).to(next(network.parameters()).device)
    probabilities = network(images)[0].softmax(0).tolist()
    names = {names}
    return sorted(zip(names, probabilities, strict=True), key=lambda pair: -pair[1])
'''


FIT = '''
def fit(image: str | Path | Image) -> tuple[Tensor, tuple[int, int], tuple[int, int]]:
    """An image as the network saw it, at the top left of a square; its rows and columns there and in the file."""
    from PIL import Image

    view = converted(Image.open(image) if isinstance(image, str | Path) else image, IN_CHANS)
    pixels = torch.frombuffer(bytearray(view.tobytes()), dtype=torch.uint8)
    pixels = pixels.view(1, view.height, view.width, IN_CHANS).permute(0, 3, 1, 2).float()
    rows, columns = fitted_size(view.height, view.width, IMG_SIZE[0])
    scaled = nn.functional.interpolate(pixels, (rows, columns), mode="bilinear", antialias=True)
    square = (torch.tensor(MEAN).mul(255).round().reshape(1, -1, 1, 1)).repeat(1, 1, *IMG_SIZE)
    square[..., :rows, :columns] = scaled.round().clamp(0, 255)
    return normalise(square / 255), (rows, columns), (view.height, view.width)
'''

SEGMENT = '''
@torch.no_grad()
def predict(image: str | Path | Image, network: Model | None = None) -> Tensor:
    """The class of every pixel of an image file or a Pillow image, [rows, columns]."""
    network = load() if network is None else network
    square, (rows, columns), size = fit(image)
    logits = network(square.to(next(network.parameters()).device))[..., :rows, :columns]
    return nn.functional.interpolate(logits, size, mode="bilinear")[0].argmax(0)
'''


DETECT = '''
@torch.no_grad()
def predict(image: str | Path | Image, network: Model | None = None) -> list[tuple[str, float, list[float]]]:
    """The objects in an image file or a Pillow image, the surest first: class, score, and left, top, right, bottom."""
    network = load() if network is None else network
    square, (rows, columns), (height, width) = fit(image)
    (detection,) = network(square.to(next(network.parameters()).device))
    boxes = detection["boxes"].cpu() * torch.tensor([width / columns, height / rows] * 2)
    boxes = boxes.clamp(min=torch.zeros(4), max=torch.tensor([width, height] * 2)).tolist()
    names = {names}
    lines = zip(detection["labels"].tolist(), detection["scores"].tolist(), boxes, strict=True)
    return [(names[label - 1], score, box) for label, score, box in lines]
'''


ANSWER = '''
@torch.no_grad()
def predict(image: str | Path | Image, question: str, network: Model | None = None) -> list[tuple[str, float]]:
    """The answers to a question about an image file or a Pillow image with their probabilities, the best first."""
    network = load() if network is None else network
    device = next(network.parameters()).device
    words = encode(question, word_numbers(WORDS), MAX_WORDS)[None]
    chances = network(fit(image)[0].to(device), words.to(device))[0].sigmoid().tolist()
    return sorted(zip({names}, chances, strict=True), key=lambda pair: -pair[1])
'''


PREDICTORS: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "classify": ((PREDICT,), (upright, resize_and_crop)),
    "segment": ((FIT, SEGMENT), (fitted_size,)),
    "detect": ((FIT, DETECT), (fitted_size,)),
    "vqa": ((FIT, ANSWER), (fitted_size, encode, word_numbers)),
}
"""The source of `predict` by task, and what else it calls."""


def standalone_source(model: Backbone, facts: Mapping[str, Any] | None = None) -> str:
    """The text of a module with `Model`, `load` and, if the facts have mean and std, `normalise` and `predict`.

    >>> space = nasformer.get_space("autoformer-micro")
    >>> "class TransformerBlock(nn.Module):" in standalone_source(space.build(space.sample()))
    True
    """
    facts, segments = facts or {}, plan_of(model)
    preprocessing = preprocessing_of(model.options, facts)
    roots: list[Any] = [*layer_classes(segments), read_safetensors]
    functions = [LOAD.strip()]
    if normalises(preprocessing):
        functions.insert(0, NORMALISE.strip())
    if predicts(model, preprocessing, facts):
        names = "CLASSES" if "classes" in facts else f"[str(number) for number in range({model.num_classes})]"
        template, needs = PREDICTORS[model.task]
        roots += [converted, *needs]
        functions += [text.strip().replace("{names}", names) for text in template]
    closure, network = Closure(roots), model_class(segments, ("words",) if model.task == "vqa" else ())
    imports = closure.imports | {Import("torch", None, "torch"), Import("torch", "Tensor", "Tensor")}
    imports |= {Import("torch", "nn", "nn"), Import("pathlib", "Path", "Path")}
    if "OrderedDict(" in network:
        imports.add(Import("collections", "OrderedDict", "OrderedDict"))
    opening = [
        header(model, preprocessing, facts),
        "from __future__ import annotations",
        import_lines(imports),
        constants(model, preprocessing, facts),
    ]
    return "\n\n\n".join(["\n\n".join(opening), closure.text(), network, *functions]) + "\n"


def normalises(preprocessing: Preprocessing) -> bool:
    """Whether the file has `normalise`: mean and deviation are known."""
    return preprocessing.mean is not None and preprocessing.std is not None


def predicts(model: Backbone, preprocessing: Preprocessing, facts: Mapping[str, Any]) -> bool:
    """Whether the file has `predict`: the task has one, and images with that number of channels can be read.

    Questions can be read where the words are known, and not by a text encoder, which is another library's.
    """
    readable = model.task != "vqa" or ("words" in facts and not facts.get("text_encoder"))
    return model.task in ANSWERS and normalises(preprocessing) and preprocessing.in_chans in MODES and readable


def call(model: Backbone, preprocessing: Preprocessing) -> str:
    """How the network is called, in words for header and card."""
    images = "model.normalise(images)" if normalises(preprocessing) else "images"
    answers = "detections" if model.task == "detect" else "logits"
    return f"{answers} = network({images}{', words' if model.task == 'vqa' else ''})"


def predict_call(model: Backbone) -> str:
    question = ', "what is this?"' if model.task == "vqa" else ""
    return f'{ANSWERS[model.task][0]} = model.predict("photo.jpg"{question}, network)'


def plan_of(model: Backbone) -> list[Segment]:
    segments = model.plan(model.arch, **model.options)
    if [segment.name for segment in segments] != model.segment_names:
        raise UserError("a model that layers were taken from cannot be written as source; export the whole model")
    return segments


def layer_classes(segments: list[Segment]) -> list[type]:
    """The classes that a plan names: layers, and those among the options of layers."""
    values = [value for segment in segments for value in (segment.layer, *dict(segment.options).values())]
    return list(dict.fromkeys(value for value in values if isinstance(value, type)))


def header(model: Backbone, preprocessing: Preprocessing, facts: Mapping[str, Any]) -> str:
    arch = textwrap.wrap(json.dumps(model.arch.to_dict()), WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    needs = "torch and torchvision" if model.task == "detect" else "torch"
    author = f"nasformer {nasformer.__version__}"
    lines = [
        f'"""A network of the family {model.family}, written by {author}; it needs only {needs}.',
        "",
        "    import model",
        "",
        '    network = model.load("model.safetensors")',
        f"    {call(model, preprocessing)}",
        *([f"    {predict_call(model)}  # needs Pillow"] if predicts(model, preprocessing, facts) else []),
        "",
        "The code is that of nasformer's layers, under the licence Apache-2.0. The architecture as JSON:",
        "",
        *(f"    {line}" for line in arch),
        '"""',
    ]
    return "\n".join(lines)


def constants(model: Backbone, images: Preprocessing, facts: Mapping[str, Any]) -> str:
    """The preprocessing and the names of the classes as constants of the module."""
    values: dict[str, Any] = {"IMG_SIZE": images.img_size}
    if predicts(model, images, facts):
        values |= {
            "IN_CHANS": images.in_chans,
            "CROP_PCT": images.crop_pct,
            "INTERPOLATION": images.interpolation,
        }
    if normalises(images):
        values |= {"MEAN": images.mean, "STD": images.std}
    if "classes" in facts:
        values["CLASSES"] = tuple(facts["classes"])
    if model.task == "vqa" and predicts(model, images, facts):
        values |= {"MAX_WORDS": model.options["max_words"], "WORDS": tuple(facts["words"])}
    lines = ['WEIGHTS = Path(__file__).with_name("model.safetensors")']
    for name, value in values.items():
        items = [literal(item) for item in value] if isinstance(value, tuple) else []
        lines.append(layout(f"{name} = ", items, ")", 0) if items else f"{name} = {literal(value)}")
    return "\n".join(lines)


def model_class(segments: list[Segment], beside: Sequence[str] = ()) -> str:
    """The class that has the layers as its attributes, named as in the weights.

    Args:
        beside: What the head is given beside its maps, by name.
    """
    tree = nested(segments)
    *before, last = tree
    lines = ["class Model(nn.Module):", "    def __init__(self) -> None:", "        super().__init__()"]
    lines += [layer_call(f"self.{name} = ", part, 8, ending="") for name, part in tree.items()]
    if segments[-1].inputs:
        return "\n".join([*lines, *forward_maps(tree, segments[-1].inputs, beside)])
    lines += ["", "    def forward_features(self, x: Tensor) -> Tensor:"]
    lines += [f"        x = self.{name}(x)" for name in before[:-1]]
    lines += [f"        return self.{before[-1]}(x)", "", "    def forward(self, x: Tensor) -> Tensor:"]
    return "\n".join([*lines, f"        return self.{last}(self.forward_features(x))"])


def forward_maps(tree: Mapping[str, Any], inputs: Sequence[str], beside: Sequence[str]) -> list[str]:
    """The forward pass of a model whose head reads maps: what each stage gives, or what the last block gives."""
    *before, head = tree
    lines = ["", f"    def forward(self, x: Tensor{''.join(f', {name}: Tensor' for name in beside)}) -> Tensor:"]
    if len(inputs) == 1:
        last = f"        return self.{head}([{', '.join(['x', *beside])}])"
        return [*lines, *(f"        x = self.{name}(x)" for name in before), last]
    *stem, stages = before
    lines += ["        maps = []", *(f"        x = self.{name}(x)" for name in stem)]
    lines += [f"        for stage in self.{stages}:", "            x = stage(x)", "            maps.append(x)"]
    order = list(tree[stages])
    chosen = [order.index(name.split(".")[1]) for name in inputs]
    inputs_of_head = [*(f"maps[{number}]" for number in chosen), *beside]
    arguments = "maps" if len(chosen) == len(order) and not beside else f"[{', '.join(inputs_of_head)}]"
    return [*lines, f"        return self.{head}({arguments})"]


def nested(segments: list[Segment]) -> dict[str, Any]:
    """The segments as dicts in dicts, by the parts of their names; the order in which they run must stay the same."""
    tree: dict[str, Any] = {}
    for segment in segments:
        *path, last = segment.name.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = segment
    if leaves(tree) != segments:
        raise UserError("segments of one container do not follow each other; name them so that they do")
    return tree


def leaves(tree: Mapping[str, Any]) -> list[Segment]:
    return [leaf for part in tree.values() for leaf in (leaves(part) if isinstance(part, dict) else [part])]


def layer_call(prefix: str, part: Segment | dict[str, Any], indent: int, ending: str = ",") -> str:
    """A layer or a container of layers as the call that makes it."""
    if isinstance(part, Segment):
        options = [f"{name}={literal(value)}" for name, value in part.options]
        return layout(f"{' ' * indent}{prefix}{part.layer.__name__}", options, f"){ending}", indent)
    space, inner = " " * indent, indent + 4
    if list(part) == [str(number) for number in range(len(part))]:
        lines = [layer_call("", item, inner) for item in part.values()]
        return "\n".join([f"{space}{prefix}nn.Sequential(", *lines, f"{space}){ending}"])
    opening, closing = f"{space}{prefix}nn.Sequential(", f"{space}){ending}"
    if all(name.isidentifier() for name in part):
        lines = [layer_call(f"{name}=", item, inner + 4) for name, item in part.items()]
    else:  # blocks of which some are left out keep their numbers, which are no names of arguments
        items = [layer_call(f'"{name}": ', item, inner + 8) for name, item in part.items()]
        lines = [f"{space}        {{", *items, f"{space}        }}"]
    return "\n".join([opening, f"{space}    OrderedDict(", *lines, f"{space}    )", closing])


def literal(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    return f'"{"".join(map(escaped, value))}"' if isinstance(value, str) else repr(value)


def escaped(letter: str) -> str:
    """A letter as it stands between double quotes; what cannot be printed as its number."""
    if letter in '"\\':
        return f"\\{letter}"
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def layout(prefix: str, items: list[str], closing: str, indent: int) -> str:
    """A call or a tuple on one line if it fits, else its items on a line of their own, else each on one."""
    single = "," if len(items) == 1 and prefix.endswith("= ") else ""  # a tuple of one
    line = f"{prefix}({', '.join(items)}{single}{closing}"
    if len(line) <= WIDTH:
        return line
    space = " " * (indent + 4)
    inner = f"{space}{', '.join(items)}"
    rows = [inner] if len(inner) <= WIDTH and not prefix.endswith("= ") else [f"{space}{item}," for item in items]
    return "\n".join([f"{prefix}(", *rows, f"{' ' * indent}{closing}"])
