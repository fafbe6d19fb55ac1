"""The model card: README.md of an export, which says what the model is, how to load it and how it was made."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import nasformer
from nasformer.export.standalone import ANSWERS, call, predict_call, predicts
from nasformer.layers.basic import total_cost
from nasformer.models.base import Backbone
from nasformer.models.storage import input_shape, preprocessing_of
from nasformer.tasks.options import split_scores
from nasformer.utils.tables import escape_markdown, markdown_table
from nasformer.utils.units import format_quantity

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
    parts = [
        f"# A network of the family {model.family}",
        f"Found and written by nasformer {nasformer.__version__}.",
        markdown_table(summary(model, facts)),
        *([" ".join(map(escape_markdown, made["verdict"]))] if made.get("verdict") else []),
        "## Files",
        "The last column is the largest difference of any logit to the searched model's, on random images.",
        files_table(differences),
        *loading(model, facts, differences),
        *timm_loading(timm_arguments or {}),
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


def timm_loading(arguments: Mapping[str, Any]) -> list[str]:
    """How to make this net of timm's own ViT, where that is possible."""
    filled = {"file": TIMM_WEIGHTS, "base": TIMM_BASE, "arguments": dict(arguments)}
    return [TIMM_ITSELF.format(**filled)] if arguments else []


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
