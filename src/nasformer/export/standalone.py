"""A model as one Python file that needs only torch: its plan written out, below the source of the layers it names.

The layers are those that the model has run with all along (`source.py`), so there is no second implementation.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

import nasformer
from nasformer.errors import UserError
from nasformer.export.safetensors_reader import read_safetensors
from nasformer.export.source import Closure, Import, import_lines
from nasformer.families.base import Backbone
from nasformer.families.segment import Segment
from nasformer.layers.stem import to_2tuple

WIDTH = 120

NORMALISE = '''
def normalise(images: Tensor) -> Tensor:
    """Images [batch, channels, rows, columns], bytes or floats in 0..1, as the network saw them in training."""
    images = images / 255 if images.dtype == torch.uint8 else images
    mean, std = (torch.tensor(values, device=images.device).reshape(1, -1, 1, 1) for values in (MEAN, STD))
    return (images - mean) / std
'''

LOAD = '''
def load(weights: str | Path = WEIGHTS, device: str = "cpu") -> Model:
    """The trained network, ready for use."""
    network = Model()
    network.load_state_dict(read_safetensors(weights))
    return network.to(device).eval()
'''


def standalone_source(model: Backbone, facts: Mapping[str, Any] | None = None) -> str:
    """The text of a module with `Model`, `load` and, if the facts have mean and std, `normalise`.

    >>> space = nasformer.get_space("autoformer-micro")
    >>> "class TransformerBlock(nn.Module):" in standalone_source(space.build(space.sample()))
    True
    """
    facts = facts or {}
    segments = plan_of(model)
    closure, network = Closure([*layer_classes(segments), read_safetensors]), body(segments)
    normed = "mean" in facts and "std" in facts
    imports = closure.imports | {Import("torch", None, "torch"), Import("torch", "Tensor", "Tensor")}
    imports |= {Import("torch", "nn", "nn"), Import("pathlib", "Path", "Path")}
    if "OrderedDict(" in network:
        imports.add(Import("collections", "OrderedDict", "OrderedDict"))
    opening = [header(model, normed), "from __future__ import annotations", import_lines(imports)]
    opening.append(constants(model, facts))
    parts = ["\n\n".join(opening), closure.text(), network, *([NORMALISE.strip()] if normed else []), LOAD.strip()]
    return "\n\n\n".join(parts) + "\n"


def plan_of(model: Backbone) -> list[Segment]:
    segments = model.plan(model.arch, **model.options)
    if [segment.name for segment in segments] != model.segment_names:
        raise UserError("a model that layers were taken from cannot be written as source; export the whole model")
    return segments


def layer_classes(segments: list[Segment]) -> list[type]:
    """The classes that a plan names, layers and those among the options of layers."""
    found = [value for s in segments for value in (s.layer, *dict(s.options).values()) if isinstance(value, type)]
    return list(dict.fromkeys(found))


def header(model: Backbone, normed: bool) -> str:
    images = "model.normalise(images)" if normed else "images"
    arch = textwrap.wrap(json.dumps(model.arch.to_dict()), WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    maker = f"nasformer {nasformer.__version__}"
    lines = [
        f'"""A network of the family {model.family}, written by {maker}; it needs only torch.',
        "",
        "    import model",
        "",
        '    network = model.load("model.safetensors")',
        f"    logits = network({images})",
        "",
        "The code is that of nasformer's layers, under the licence Apache-2.0. The architecture as JSON:",
        "",
        *(f"    {line}" for line in arch),
        '"""',
    ]
    return "\n".join(lines)


def constants(model: Backbone, facts: Mapping[str, Any]) -> str:
    values: dict[str, Any] = {"IMG_SIZE": to_2tuple(model.options["img_size"])}
    values |= {name.upper(): tuple(facts[name]) for name in ("mean", "std", "classes") if name in facts}
    lines = [layout(f"{name} = ", "(", [literal(v) for v in value], ")", 0) for name, value in values.items()]
    return "\n".join(['WEIGHTS = Path(__file__).with_name("model.safetensors")', *lines])


def body(segments: list[Segment]) -> str:
    """The class that has the layers as its attributes, named as in the weights."""
    tree = nested(segments)
    *before, last = tree
    lines = ["class Model(nn.Module):", "    def __init__(self) -> None:", "        super().__init__()"]
    lines += [written(f"self.{name} = ", part, 8, ending="") for name, part in tree.items()]
    lines += ["", "    def forward_features(self, x: Tensor) -> Tensor:"]
    lines += [f"        x = self.{name}(x)" for name in before[:-1]]
    lines += [f"        return self.{before[-1]}(x)", "", "    def forward(self, x: Tensor) -> Tensor:"]
    return "\n".join([*lines, f"        return self.{last}(self.forward_features(x))"])


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


def written(prefix: str, part: Segment | dict[str, Any], indent: int, ending: str = ",") -> str:
    """A layer or a container of layers as the call that makes it."""
    if isinstance(part, Segment):
        options = [f"{name}={literal(value)}" for name, value in part.options]
        return layout(f"{' ' * indent}{prefix}{part.layer.__name__}", "(", options, f"){ending}", indent)
    space, inner = " " * indent, indent + 4
    if list(part) == [str(number) for number in range(len(part))]:
        lines = [written("", item, inner) for item in part.values()]
        return "\n".join([f"{space}{prefix}nn.Sequential(", *lines, f"{space}){ending}"])
    lines = [written(f"{name}=", item, inner + 4) for name, item in part.items()]
    opening, closing = f"{space}{prefix}nn.Sequential(", f"{space}){ending}"
    return "\n".join([opening, f"{space}    OrderedDict(", *lines, f"{space}    )", closing])


def literal(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def layout(prefix: str, opening: str, items: list[str], closing: str, indent: int) -> str:
    """A call or a tuple on one line if it fits, else its items on a line of their own, else each on one."""
    single = "," if len(items) == 1 and prefix.endswith("= ") else ""  # a tuple of one
    line = f"{prefix}{opening}{', '.join(items)}{single}{closing}"
    if len(line) <= WIDTH:
        return line
    space = " " * (indent + 4)
    inner = f"{space}{', '.join(items)}"
    rows = [inner] if len(inner) <= WIDTH and not prefix.endswith("= ") else [f"{space}{item}," for item in items]
    return "\n".join([f"{prefix}{opening}", *rows, f"{' ' * indent}{closing}"])
