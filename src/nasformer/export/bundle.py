"""Export: a folder from which a model can be used anywhere. It appears whole, checked, or not at all."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import nasformer
from nasformer.data.loaders import ImageText
from nasformer.errors import UserError
from nasformer.export.standalone import ANSWERS, call, predict_call, predicts, standalone_source
from nasformer.layers.basic import total_cost
from nasformer.layers.vqa import PADDING
from nasformer.models.base import Backbone
from nasformer.models.storage import CONFIG, WEIGHTS, input_shape, load_model, preprocessing_of, save_model
from nasformer.tasks.options import split_scores
from nasformer.utils.device import cpu_threads
from nasformer.utils.files import draft_path, read_json, read_tensors, save_tensors, write_bytes, write_text
from nasformer.utils.progress import say
from nasformer.utils.schema import to_json
from nasformer.utils.tables import escape_markdown, markdown_table
from nasformer.utils.units import format_quantity

# Graph formats: a model as torch.export's .pt2 and as ONNX, for any number of images at a time.
#
# Files are made in memory and then written, since on a full disk torch's own writers end the process.


INPUTS, OUTPUT = ("images", "words"), "logits"
"""Names in ONNX files; words are an input of models that answer questions."""
Inputs = tuple[Tensor, ...]
"""What a network is called with: images, and of one that answers questions words."""
INSTALL_ONNX = "pip install 'nasformer[onnx]'"


def has_onnx() -> bool:
    """Whether ONNX files can be written."""
    return find_spec("onnx") is not None and find_spec("onnxscript") is not None


def has_onnxruntime() -> bool:
    """Whether ONNX files can be run."""
    return find_spec("onnxruntime") is not None


class WithWords(nn.Module):
    """A model that answers questions, called with images and words."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        return self.model(ImageText(images, words))


def callable_alone(model: Backbone) -> nn.Module:
    """The model as users of the exported files call it."""
    return WithWords(model) if model.task == "vqa" else model


def trace(model: nn.Module, inputs: Inputs) -> ExportedProgram:
    """The model as one graph; inputs give the shapes, of which the batch stays free."""
    batch = Dim("batch")
    with quiet():
        program = torch.export.export(model, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # full of paths of the machine that exports
    return program


def pt2_bytes(program: ExportedProgram) -> bytes:
    """The content of a .pt2 file."""
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer)
    return buffer.getvalue()


def onnx_bytes(program: ExportedProgram, metadata: Mapping[str, str] | None = None) -> bytes:
    """The content of an ONNX file, with custom metadata in it."""
    if not has_onnx():
        raise UserError(f"writing ONNX needs the packages onnx and onnxscript: {INSTALL_ONNX}")
    inputs = INPUTS[: len(program.graph_signature.user_inputs)]
    shapes = tuple({0: "batch"} for _ in inputs)
    names: dict[str, Any] = {"input_names": list(inputs), "output_names": [OUTPUT], "dynamic_shapes": shapes}
    with quiet():
        exported = torch.onnx.export(program, (), dynamo=True, external_data=False, verbose=False, **names)
    assert exported is not None
    exported.model.metadata_props.update(metadata or {})
    return exported.model_proto.SerializeToString()


def run_onnx(content: bytes, batches: list[Inputs]) -> list[Tensor]:
    """The logits of ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    fed = [{name: x.numpy() for name, x in zip(INPUTS, inputs, strict=False)} for inputs in batches]
    return [torch.from_numpy(session.run([OUTPUT], feed)[0]) for feed in fed]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence exporters, which print their inner workings; what matters is whether the file gives the same logits."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


FORMATS = {"python": "model.py", "pt2": "model.pt2", "onnx": "model.onnx"}
CARD = "README.md"
TOLERANCE = 1e-4  # of logits


@dataclass
class Exported:
    """The files of an export.

    Attributes:
        differences: For each file that can be run, the largest difference of its logits to the model's. None means
            that the file could not be run here.
        notes: Why it could not, and what could not be written.
    """

    folder: Path
    differences: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def export_model(
    model: Backbone,
    folder: str | Path,
    facts: Mapping[str, Any] | None = None,
    formats: Sequence[str] = tuple(FORMATS),
    quiet: bool = True,
) -> Exported:
    """Write weights, config, model card and the chosen formats, and check that each gives the model's logits.

    Args:
        folder: A new folder, or that of an earlier export or extraction, which is replaced.
        facts: What is known about the model: preprocessing (or just mean and std), classes, space, accuracies ...
            They go into config and card.
        formats: Any of python (a file that needs only torch), pt2 (torch.export) and onnx.
        quiet: Does not say what is written and checked meanwhile.
    """
    folder = Path(folder)
    check_formats(formats)
    check_folder(folder)
    draft = draft_path(folder.resolve())
    shutil.rmtree(draft, ignore_errors=True)
    tell = silent if quiet else say
    try:
        with cpu_threads(1):  # for a few images; more would wait for each other on a busy machine
            exported = write_and_check(
                copy.deepcopy(model).cpu().float().eval(), draft, dict(facts or {}), formats, tell
            )
        move(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Exported(folder, exported.differences, exported.notes)


Tell = Callable[[str], None]


def silent(line: str) -> None:
    """Says nothing."""


def check_formats(formats: Sequence[str]) -> None:
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise UserError(f"unknown format {', '.join(unknown)}; there are: {', '.join(FORMATS)}")


def check_folder(folder: Path) -> None:
    """Refuse to overwrite anything but a model: somebody's README or config, or a run."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder to export to")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / CONFIG).exists() or "family" not in read_json(folder / CONFIG):
        raise UserError(f"{folder} has other things in it than a model; export to another folder")


def write_and_check(
    model: Backbone, folder: Path, facts: dict[str, Any], formats: Sequence[str], tell: Tell = silent
) -> Exported:
    """Writes all files of an export; each is loaded again and must give the model's logits."""
    if model.task == "detect":
        formats = [name for name in formats if name == "python"]
    batches = random_batches(model)
    expected = logits_of(callable_alone(model), batches)
    exported = Exported(folder)
    if model.task == "detect":
        exported.notes.append("a detector is exported as Python alone: its boxes differ in number from image to image")
        if not any(len(tensor) for tensor in expected):
            exported.notes.append("the model finds nothing in the images of the check, so only that was compared")
    save_model(model, folder, **facts)
    exported.differences[WEIGHTS] = check(WEIGHTS, logits_of(callable_alone(load_model(folder)), batches), expected)
    write_formats(model, facts, formats, exported, tell)
    arguments = write_for_timm(model, folder)
    if arguments:
        exported.differences[TIMM_WEIGHTS] = check(TIMM_WEIGHTS, logits_of_timm(folder, arguments, batches), expected)
    files = [FORMATS[name] for name in ("python", "pt2") if name in formats]
    tell("export: running what was written, in a process without nasformer")
    for file, logits in (logits_without_nasformer(folder, files, batches) if files else {}).items():
        exported.differences[file] = check(file, logits, expected)
    if (folder / FORMATS["onnx"]).exists():
        check_onnx(exported, batches, expected)
    write_text(folder / CARD, model_card(model, facts, exported.differences, arguments))
    return exported


def check_onnx(exported: Exported, batches: list[tuple[Tensor, ...]], expected: list[Tensor]) -> None:
    """Runs model.onnx where onnxruntime is installed; otherwise notes that it is unchecked."""
    file = FORMATS["onnx"]
    if has_onnxruntime():
        exported.differences[file] = check(file, run_onnx((exported.folder / file).read_bytes(), batches), expected)
    else:
        exported.differences[file] = None
        exported.notes.append(f"model.onnx is unchecked, since onnxruntime is missing: {INSTALL_ONNX}")


def write_formats(
    model: Backbone, facts: Mapping[str, Any], formats: Sequence[str], exported: Exported, tell: Tell
) -> None:
    folder = exported.folder
    if "python" in formats:
        write_text(folder / FORMATS["python"], standalone_source(model, facts))
    if not {"pt2", "onnx"} & set(formats):
        return
    tell("export: tracing the graph")
    program = trace(callable_alone(model), random_batches(model, sizes=(2,))[0])
    if "pt2" in formats:
        write_bytes(folder / FORMATS["pt2"], pt2_bytes(program))
    if "onnx" in formats and has_onnx():
        tell("export: model.onnx")
        write_bytes(folder / FORMATS["onnx"], onnx_bytes(program, onnx_metadata(model, facts)))
    elif "onnx" in formats:
        exported.notes.append(f"model.onnx was not written, since onnx or onnxscript is missing: {INSTALL_ONNX}")


def write_for_timm(model: Backbone, folder: Path) -> dict[str, Any]:
    """Writes the weights under the names of timm's own ViT, where that can be this net; returns its arguments."""
    timm_form = model.to_timm() if model.task == "classify" else None  # timm has no head of another task
    if timm_form is None:
        return {}
    arguments, state = timm_form
    save_tensors(folder / TIMM_WEIGHTS, state)
    return arguments


def logits_of_timm(folder: Path, arguments: Mapping[str, Any], batches: list[Inputs]) -> list[Tensor]:
    import timm

    network = timm.create_model(TIMM_BASE, **arguments).eval()
    network.load_state_dict(read_tensors(folder / TIMM_WEIGHTS))
    return logits_of(network, batches)


def onnx_metadata(model: Backbone, facts: Mapping[str, Any]) -> dict[str, str]:
    """What a user of the ONNX file needs to know, as JSON by name."""
    values = {"preprocessing": to_json(preprocessing_of(model.options, facts)), "classes": facts.get("classes")}
    return {name: json.dumps(value) for name, value in values.items() if value is not None}


def move(draft: Path, folder: Path) -> None:
    """Put the draft in the folder's place. Formats of an earlier export that it lacks go: they are of another model."""
    if not folder.exists():
        os.replace(draft, folder)
        return
    for name in (*FORMATS.values(), TIMM_WEIGHTS, CARD):
        if not (draft / name).exists():
            (folder / name).unlink(missing_ok=True)
    for file in sorted(draft.iterdir()):
        os.replace(file, folder / file.name)


# Checks: every file is loaded again and must give the model's logits

ISOLATED_SCRIPT = """
import io, os, sys
folder, packages, threads, *files = sys.argv[1:]
sys.path += [folder, packages]
if "model.py" in files and "from torchvision" in open(os.path.join(folder, "model.py")).read():
    import torchvision  # with Pillow, which it needs
for name in ("nasformer", "timm", "safetensors", "torchvision", "huggingface_hub", "PIL"):
    sys.modules.setdefault(name, None)
output, sys.stdout = sys.stdout.buffer, sys.stderr
import torch
torch.set_num_threads(int(threads))
batches, logits = torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=True), {}
for file in files:
    if file == "model.py":
        import model
        network = model.load(os.path.join(folder, "model.safetensors"))
    else:
        network = torch.export.load(os.path.join(folder, file)).module()
    with torch.no_grad():
        answers = [network(*inputs) for inputs in batches]
        logits[file] = [x for answer in answers for x in (
            [answer] if isinstance(answer, torch.Tensor) else [y for detection in answer for y in detection.values()]
        )]
buffer = io.BytesIO()
torch.save(logits, buffer)
output.write(buffer.getvalue())
output.flush()  # a few bytes, of a detector that finds nothing, may be lost at the end otherwise
"""
"""A process that has torch, but can import neither us nor what we are built on."""


def random_batches(model: Backbone, sizes: tuple[int, ...] = (1, 3)) -> list[Inputs]:
    generator, shape = torch.Generator().manual_seed(0), input_shape(model)
    images = [torch.randn(size, *shape, generator=generator) for size in sizes]
    if model.task != "vqa":
        return [(x,) for x in images]
    return [(x, random_words(model.options, len(x), generator)) for x in images]


def random_words(options: Mapping[str, Any], count: int, generator: torch.Generator) -> Tensor:
    """Questions of about half the words that are read, or as many features of a text encoder."""
    shape, half = (count, options["max_words"]), (options["max_words"] + 1) // 2
    if width := options.get("text_dim"):
        words = torch.randn(*shape, width, generator=generator)
    else:
        words = torch.randint(1, options["vocab_size"], shape, generator=generator)
    words[:, half:] = PADDING
    return words


@torch.no_grad()
def logits_of(model: nn.Module, batches: list[Inputs]) -> list[Tensor]:
    """All tensors that a model gives: logits, or the detections in each image."""
    answers = [model(*inputs) for inputs in batches]
    return [x for answer in answers for x in ([answer] if isinstance(answer, Tensor) else tensors_in(answer))]


def tensors_in(detections: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    return [tensor for detection in detections for tensor in detection.values()]


def logits_without_nasformer(folder: Path, files: list[str], batches: list[Inputs]) -> dict[str, list[Tensor]]:
    """What model.py and model.pt2 give in a process that cannot import nasformer."""
    images, packages = io.BytesIO(), Path(torch.__file__).parents[1]
    torch.save(batches, images)
    arguments = [str(folder.resolve()), str(packages), str(torch.get_num_threads()), *files]
    command = [sys.executable, "-I", "-B", "-c", ISOLATED_SCRIPT, *arguments]
    done = subprocess.run(command, input=images.getvalue(), capture_output=True)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"{' and '.join(files)} cannot be used without nasformer ({lines[-1]}); nothing was exported")
    return torch.load(io.BytesIO(done.stdout), weights_only=True)


def check(file: str, logits: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of any logit; an error if it is too large."""
    difference = largest_difference(logits, expected)
    if difference > TOLERANCE:
        raise UserError(
            f"logits of {file} differ from the model's by {difference:.1e}, more than {TOLERANCE:.0e}; nothing was "
            "exported. Leave this format out with --formats, and please report it"
        )
    return difference


def largest_difference(logits: list[Tensor], expected: list[Tensor]) -> float:
    """Infinite where shapes differ or something is not a number; 0 where nothing is detected in any image."""
    if [batch.shape for batch in logits] != [batch.shape for batch in expected]:
        return float("inf")
    differences = torch.cat([(a - b).abs().flatten() for a, b in zip(logits, expected, strict=True)])
    return float(differences.nan_to_num(nan=float("inf")).max()) if len(differences) else 0.0


# The model card: README.md of an export, which says what the model is, how to load it and how it was made.

OUTPUTS = {
    "segment": "Logits are [batch, classes, rows, columns]. ",
    "panoptic": "Answers are [batch, classes + 3, rows, columns]: logits, the heat of centres, rows and columns to the "
    "centre; nasformer.tasks.panoptic.group makes segments of them. ",
    "detect": "The network gives a list, one dict an image: boxes [n, 4] in pixels of the square, labels from 1 on, "
    "scores, and masks [n, 1, 28, 28] within their boxes. ",
    "vqa": "Logits are those of the answers, each of which has a chance of its own (a sigmoid). ",
}
"""What the network gives, by task."""

LOADING = {
    "model.py": """`model.py` needs only torch; put it beside `model.safetensors`:

```python
import model

network = model.load()
{use}
```""",
    "model.pt2": """`model.pt2` is a graph of torch.export, for any number of images:

```python
import torch

network = torch.export.load("model.pt2").module()
```""",
    "model.onnx": """`model.onnx` takes {inputs} and gives `logits`, for any number of images:

```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(logits,) = session.run(["logits"], {{{feed}}})
```""",
    "model.safetensors": """`model.safetensors` and `config.json` are for nasformer and timm:

```python
import nasformer, timm

network = nasformer.load_model("FOLDER")
network = timm.create_model("local-dir:FOLDER", pretrained=True)
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
```""",
}

FOR_NASFORMER = """`model.safetensors` and `config.json` are for nasformer:

```python
import nasformer

network = nasformer.load_model("FOLDER")
```"""


TIMM_BASE, TIMM_WEIGHTS = "vit_base_patch16_224", "timm.safetensors"
"""The model of timm that becomes any plain ViT by its arguments, and the file of weights for it."""
TIMM_ITSELF = """`{file}` is for timm's own ViT, without nasformer, since all blocks of this net are alike:

```python
import timm
from safetensors.torch import load_file

network = timm.create_model("{base}", **{arguments})
network.load_state_dict(load_file("{file}"))
```"""


def model_card(
    model: Backbone,
    facts: Mapping[str, Any],
    differences: Mapping[str, float | None],
    timm_arguments: Mapping[str, Any] | None = None,
) -> str:
    """The text of README.md; `differences` are those of the logits, by file.

    Args:
        facts: What is known of the model. Its provenance may have the verdict on its run, in sentences.
        timm_arguments: Those with which timm's own ViT is this net, if it can be.
    """
    made = facts.get("provenance", {})
    timm = {"file": TIMM_WEIGHTS, "base": TIMM_BASE, "arguments": dict(timm_arguments or {})}
    parts = [
        f"# A network of the family {model.family}",
        f"Found and written by nasformer {nasformer.__version__}.",
        markdown_table(summary(model, facts)),
        *([" ".join(map(escape_markdown, made["verdict"]))] if made.get("verdict") else []),
        "## Files",
        "The last column is the largest difference of any logit to the searched model's, on random images.",
        files_table(differences),
        *loading(model, facts, differences),
        *([TIMM_ITSELF.format(**timm)] if timm_arguments else []),
        "## Images",
        images_text(model, facts),
        "## How it came about",
        markdown_table(origin(made)) if made else "Nothing is known about it: the model was not exported from a run.",
        *([details("Recipe", made["recipe"])] if made.get("recipe") else []),
        "## Architecture",
        f"```json\n{json.dumps(model.arch.to_dict())}\n```",
        details("Options of the model", model.options),
    ]
    return "\n\n".join(parts) + "\n"


def summary(model: Backbone, facts: Mapping[str, Any]) -> dict[str, str]:
    cost = total_cost([segment.cost() for segment in model.plan(model.arch, **model.options)])
    macs = f"{format_quantity(cost.macs)}"
    if cost.position_macs:
        macs += f", and {format_quantity(cost.position_macs)} for relative positions"
    all_facts = {**facts, **facts.get("provenance", {})}
    rows = {"space": str(all_facts["space"])} if "space" in all_facts else {}
    rows |= {"parameters": f"{cost.params:,}", "multiply-accumulates an image": macs}
    return rows | {words: f"{all_facts[name]:.2%}" for name, words in split_scores().items() if name in all_facts}


def origin(made: Mapping[str, Any]) -> dict[str, str]:
    """How the weights were made, and the versions of then and now."""
    rows = {name: str(made[name]) for name in ("weights", "data", "holdout", "seed") if name in made}
    budget = made.get("budget")
    if isinstance(budget, dict):
        rows["budget"] = ", ".join(f"{name} {value}" for name, value in budget.items())
    for name, version in made.get("versions", {}).items():
        rows[f"{name}, when trained"] = str(version)
    versions = {"nasformer": nasformer.__version__, "torch": torch.__version__, "Python": platform.python_version()}
    return rows | {f"{name}, when exported": version for name, version in versions.items()}


def files_table(differences: Mapping[str, float | None]) -> str:
    rows = [f"| `{file}` | {'not checked' if d is None else f'{d:.1e}'} |" for file, d in differences.items()]
    return "\n".join(["| file | difference |", "| --- | --- |", *rows])


def loading(model: Backbone, facts: Mapping[str, Any], differences: Mapping[str, float | None]) -> list[str]:
    preprocessing = preprocessing_of(model.options, facts)
    use = call(model, preprocessing)
    if predicts(model, preprocessing, facts):
        use += f"\n{predict_call(model)}  # {ANSWERS[model.task][1]}; needs Pillow"
    texts = LOADING if model.task == "classify" else {**LOADING, "model.safetensors": FOR_NASFORMER}
    inputs = ("images", "words") if model.task == "vqa" else ("images",)
    filled = {"inputs": " and ".join(f"`{name}`" for name in inputs)}
    filled["feed"] = ", ".join(f'"{name}": {name}' for name in inputs)
    return [text.format(use=use, **filled) for file, text in texts.items() if file in differences]


def images_text(model: Backbone, facts: Mapping[str, Any]) -> str:
    channels, rows, columns = input_shape(model)
    text = f"Float tensors [batch, {channels}, {rows}, {columns}]. "
    images = preprocessing_of(model.options, facts)
    if images.mean is None or images.std is None:
        return text + "How they were normalised in training is not known."
    if model.task != "classify":
        text += f"The longer side of an image is resized to {rows} pixels ({images.interpolation}); it lies at the "
        text += "top left of a square whose rest has the mean colour. "
        text += OUTPUTS.get(model.task, "")
        if model.task == "vqa":
            text += words_text(model, facts)
        return text + normalisation_text(images.mean, images.std, facts)
    text += f"The short side of an image is resized to {images.short_side} pixels ({images.interpolation}), "
    text += f"of which the central {rows} x {columns} are kept. "
    return text + normalisation_text(images.mean, images.std, facts)


def words_text(model: Backbone, facts: Mapping[str, Any]) -> str:
    """The form of the words that the network takes beside the images."""
    count, width = model.options["max_words"], model.options.get("text_dim")
    if width:
        encoder = escape_markdown(str(facts.get("text_encoder")))
        return f"`words` are features [batch, {count}, {width}] of the text encoder {encoder}, zeros where no word is. "
    return f"`words` are numbers [batch, {count}]: 0 where no word is, 1 for unknown ones, 2 and more for `WORDS`. "


def normalisation_text(mean: Sequence[float], std: Sequence[float], facts: Mapping[str, Any]) -> str:
    text = f"Pixels in 0..1, less the mean {list(mean)}, divided by the deviation {list(std)} of each channel."
    if "classes" in facts:
        names = ", ".join(escape_markdown(str(name)) for name in facts["classes"])
        text += f"\n\nClasses in the order of the logits: {names}."
    return text


def details(title: str, content: Any) -> str:
    return f"<details><summary>{title}</summary>\n\n```json\n{json.dumps(content, indent=1)}\n```\n\n</details>"


# Upload of an export to the Hugging Face Hub.


def hub_api(repo: str) -> Any:
    """The Hub's client. A wrong name and a missing package are refused before anything that takes long."""
    if repo.count("/") != 1 or not all(repo.split("/")):
        raise UserError(f"--push-to-hub is {repo!r}; give OWNER/NAME, such as me/my-model")
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UserError("--push-to-hub needs the package huggingface_hub; install it: nasformer[hub]") from None
    return HfApi()


def push_to_hub(folder: Path, repo: str, api: Any) -> str:
    """Uploads the folder of an export as a model and returns its address; makes the repository if there is none."""
    try:
        address = api.create_repo(repo, repo_type="model", exist_ok=True)
        api.upload_folder(repo_id=repo, repo_type="model", folder_path=str(folder))
    except Exception as error:  # no login, no rights, no network, a full quota: the package raises dozens of kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        advice = f"the export is in {folder}; log in with `hf auth login` and run the command again"
        raise UserError(f"the Hub refused {repo} ({reason}); {advice}") from error
    return str(address)
