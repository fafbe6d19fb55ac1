"""What the commands can be told that look at what a run has left: its models, its health, its likeness to others.

As in `config.py`, no torch here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nasformer.options import DataConfig, SpaceConfig


@dataclass
class PatternsCommand:
    """What emerged: the winners of several searches of one space, by stage, beside random architectures."""

    runs: list[str] = field(default_factory=list)
    """the run folders of searches that differ in their seeds"""
    out: str = ""
    """a folder for patterns.json and patterns.png"""


@dataclass
class CompareCommand:
    """Runs side by side: winners, settings that differ, fronts, progress and training in common plots."""

    runs: list[str] = field(default_factory=list)
    """the run folders"""
    out: str = ""
    """a folder for compare.html, compare.json and plots"""


@dataclass
class DoctorCommand:
    """Is the supernet of a run in good health? Exit code 1 where there is an alarm."""

    run: str = ""
    """the run folder, of a training that has ended or goes on"""
    data: str = ""
    """the images, where they are no longer where the training found them"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""


@dataclass
class ExtractCommand(SpaceConfig):
    """Cut an architecture out of a supernet, as an ordinary model with its weights."""

    run: str = ""
    """a run folder, a supernet folder or a file of supernet weights"""
    arch: str | None = None
    """JSON file, inline JSON or preset; None: the winner of the run's search"""
    to: str = ""
    """the folder to write"""


@dataclass
class ExportCommand:
    """Write a model for use elsewhere: self-contained Python, torch.export, ONNX; each checked against the model."""

    run: str = ""
    """a run folder with a model in it, or a folder that `nasformer extract` wrote"""
    to: str = ""
    """the folder to write"""
    formats: str = "python,pt2,onnx"
    """which files, beside weights, config and model card: any of python, pt2 and onnx"""


@dataclass
class EvaluateCommand(DataConfig):
    """Accuracy of an extracted model, or of an architecture with weights inherited from a run's supernet."""

    model: str = ""
    """a folder that `nasformer extract` or `nasformer run` wrote, or a run folder together with --arch"""
    arch: str | None = None
    """the architecture, if MODEL is a run folder"""
    split: Literal["test", "holdout", "train"] = "test"
    """which images"""
    out: str = ""
    """a folder for evaluation.json, per_class.csv and confusion.png, .svg: which classes are taken for which"""


@dataclass
class AttentionCommand(DataConfig):
    """Draw where the heads of a block look, and how alike they are."""

    model: str = ""
    """a run folder with a model in it, or a folder that `nasformer extract` or `nasformer export` wrote"""
    image: str = ""
    """an image file; or leave it out and name a test image with --data and --index"""
    block: str = ""
    """3.7 is block 7 of stage 3; 7 is the seventh block of a net without stages"""
    query: str = ""
    """who looks: row,column on the block's map, where 0,0 is top left, or cls, the class token; none: the centre"""
    data: str = ""
    """a data set whose test image --index is shown: digits, an .npz file, a folder of images or a set by name"""
    index: int = 0
    """which test image of --data, counted from 0"""
    out: str = "attention.png"
    """the picture to write: .png or .svg"""
