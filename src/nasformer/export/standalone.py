"""Standalone Python: a model as one file that needs only torch (and Pillow, to read images).

Its layers are those that the model has run with all along, cut out of our source files (`source.py`), and so is the
preprocessing: there is no second implementation that could differ.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import nasformer
from nasformer.data.decode import MODES, converted, upright
from nasformer.data.preprocessing import Preprocessing, resize_and_crop
from nasformer.errors import UserError
from nasformer.export.safetensors_reader import read_safetensors
from nasformer.export.source import Closure, Import, import_lines
from nasformer.families.base import Backbone, Segment
from nasformer.families.storage import preprocessing_of
from nasformer.layers.segmentation import fitted_size

WIDTH = 120
ANSWERS = {
    "classify": ("classes", "with their probabilities"),
    "segment": ("mask", "the class of every pixel"),
    "detect": ("objects", "class, score and box of each"),
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
    (found,) = network(square.to(next(network.parameters()).device))
    boxes = found["boxes"].cpu() * torch.tensor([width / columns, height / rows] * 2)
    boxes = boxes.clamp(min=torch.zeros(4), max=torch.tensor([width, height] * 2)).tolist()
    names = {names}
    lines = zip(found["labels"].tolist(), found["scores"].tolist(), boxes, strict=True)
    return [(names[label - 1], score, box) for label, score, box in lines]
'''


def standalone_source(model: Backbone, facts: Mapping[str, Any] | None = None) -> str:
    """The text of a module with `Model`, `load` and, if the facts have mean and std, `normalise` and `predict`.

    >>> space = nasformer.get_space("autoformer-micro")
    >>> "class TransformerBlock(nn.Module):" in standalone_source(space.build(space.sample()))
    True
    """
    facts, segments = facts or {}, plan_of(model)
    known = preprocessing_of(model.options, facts)
    roots: list[Any] = [*layer_classes(segments), read_safetensors]
    functions = [LOAD.strip()]
    if normalises(known):
        functions.insert(0, NORMALISE.strip())
    if predicts(model, known):
        names = "CLASSES" if "classes" in facts else f"[str(number) for number in range({model.num_classes})]"
        template = {"classify": (PREDICT,), "segment": (FIT, SEGMENT), "detect": (FIT, DETECT)}[model.task]
        roots += [converted, *((fitted_size,) if FIT in template else (upright, resize_and_crop))]
        functions += [text.strip().replace("{names}", names) for text in template]
    closure, network = Closure(roots), model_class(segments)
    imports = closure.imports | {Import("torch", None, "torch"), Import("torch", "Tensor", "Tensor")}
    imports |= {Import("torch", "nn", "nn"), Import("pathlib", "Path", "Path")}
    if "OrderedDict(" in network:
        imports.add(Import("collections", "OrderedDict", "OrderedDict"))
    opening = [
        header(model, known),
        "from __future__ import annotations",
        import_lines(imports),
        constants(model, known, facts),
    ]
    return "\n\n\n".join(["\n\n".join(opening), closure.text(), network, *functions]) + "\n"


def normalises(known: Preprocessing) -> bool:
    """Whether the file has `normalise`: it is known how."""
    return known.mean is not None and known.std is not None


def predicts(model: Backbone, known: Preprocessing) -> bool:
    """Whether the file has `predict`: there is one for the task, and images of so many channels can be read."""
    return model.task in ANSWERS and normalises(known) and known.in_chans in MODES


def plan_of(model: Backbone) -> list[Segment]:
    segments = model.plan(model.arch, **model.options)
    if [segment.name for segment in segments] != model.segment_names:
        raise UserError("a model that layers were taken from cannot be written as source; export the whole model")
    return segments


def layer_classes(segments: list[Segment]) -> list[type]:
    """The classes that a plan names: layers, and those among the options of layers."""
    values = [value for segment in segments for value in (segment.layer, *dict(segment.options).values())]
    return list(dict.fromkeys(value for value in values if isinstance(value, type)))


def header(model: Backbone, known: Preprocessing) -> str:
    images = "model.normalise(images)" if normalises(known) else "images"
    arch = textwrap.wrap(json.dumps(model.arch.to_dict()), WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    answer, needs = ANSWERS.get(model.task, ("",))[0], "torch and torchvision" if model.task == "detect" else "torch"
    author = f"nasformer {nasformer.__version__}"
    lines = [
        f'"""A network of the family {model.family}, written by {author}; it needs only {needs}.',
        "",
        "    import model",
        "",
        '    network = model.load("model.safetensors")',
        f"    {'found' if model.task == 'detect' else 'logits'} = network({images})",
        *([f'    {answer} = model.predict("photo.jpg", network)  # needs Pillow'] if predicts(model, known) else []),
        "",
        "The code is that of nasformer's layers, under the licence Apache-2.0. The architecture as JSON:",
        "",
        *(f"    {line}" for line in arch),
        '"""',
    ]
    return "\n".join(lines)


def constants(model: Backbone, known: Preprocessing, facts: Mapping[str, Any]) -> str:
    """The preprocessing and the names of the classes as constants of the module."""
    values: dict[str, Any] = {"IMG_SIZE": known.img_size}
    if predicts(model, known):
        values |= {"IN_CHANS": known.in_chans, "CROP_PCT": known.crop_pct, "INTERPOLATION": known.interpolation}
    if normalises(known):
        values |= {"MEAN": known.mean, "STD": known.std}
    if "classes" in facts:
        values["CLASSES"] = tuple(facts["classes"])
    lines = ['WEIGHTS = Path(__file__).with_name("model.safetensors")']
    for name, value in values.items():
        items = [literal(item) for item in value] if isinstance(value, tuple) else []
        lines.append(layout(f"{name} = ", "(", items, ")", 0) if items else f"{name} = {literal(value)}")
    return "\n".join(lines)


def model_class(segments: list[Segment]) -> str:
    """The class that has the layers as its attributes, named as in the weights."""
    tree = nested(segments)
    *before, last = tree
    lines = ["class Model(nn.Module):", "    def __init__(self) -> None:", "        super().__init__()"]
    lines += [layer_call(f"self.{name} = ", part, 8, ending="") for name, part in tree.items()]
    if segments[-1].inputs:
        return "\n".join([*lines, *forward_maps(tree, segments[-1].inputs)])
    lines += ["", "    def forward_features(self, x: Tensor) -> Tensor:"]
    lines += [f"        x = self.{name}(x)" for name in before[:-1]]
    lines += [f"        return self.{before[-1]}(x)", "", "    def forward(self, x: Tensor) -> Tensor:"]
    return "\n".join([*lines, f"        return self.{last}(self.forward_features(x))"])


def forward_maps(tree: Mapping[str, Any], inputs: Sequence[str]) -> list[str]:
    """The forward pass of a model whose head reads maps: what each stage gives, or what the last block gives."""
    *before, head = tree
    lines = ["", "    def forward(self, x: Tensor) -> Tensor:"]
    if len(inputs) == 1:
        return [*lines, *(f"        x = self.{name}(x)" for name in before), f"        return self.{head}([x])"]
    *stem, stages = before
    lines += ["        maps = []", *(f"        x = self.{name}(x)" for name in stem)]
    lines += [f"        for stage in self.{stages}:", "            x = stage(x)", "            maps.append(x)"]
    order = list(tree[stages])
    chosen = [order.index(name.split(".")[1]) for name in inputs]
    wanted = "maps" if len(chosen) == len(order) else f"[{', '.join(f'maps[{number}]' for number in chosen)}]"
    return [*lines, f"        return self.{head}({wanted})"]


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
        return layout(f"{' ' * indent}{prefix}{part.layer.__name__}", "(", options, f"){ending}", indent)
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
