"""Tasks as the command line knows them: names, scores, and the options that each of them has. No torch here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from nasformer.errors import UserError
from nasformer.utils.units import OptionGroup, check_range

Layout = Literal["auto", "folders", "voc", "ade20k", "cityscapes"]

MOST_ID = 65535
MOST_SCALE = 8


@dataclass
class JitterOptions:
    """Large-scale jitter of images with masks."""

    scale_min: float = 0.5
    """large-scale jitter: an image that is fitted into the crop is shrunk down to this in training, and padded"""
    scale_max: float = 2.0
    """large-scale jitter: and enlarged up to this, of which a random part is seen"""
    decoder_dim: int | None = None
    """channels within the head; None: as in the model to start from, or 256"""

    def __post_init__(self) -> None:
        check_range(self, "decoder_dim", 1, 4096, optional=True)
        check_range(self, "scale_min", above=0)
        check_range(self, "scale_max", above=0)
        if self.scale_min > self.scale_max:
            raise UserError(f"scale_min is {self.scale_min}, above scale_max {self.scale_max}; exchange them")


@dataclass
class SegmentOptions(JitterOptions):
    """Masks of `--task segment`."""

    layout: Layout = "auto"
    """how images and masks lie in the folder: folders (train, val and test with images and masks in each, or images
    and masks with these in each, or without), voc, ade20k, cityscapes; auto: by what is there"""
    labels: str = ""
    """names of the mask's ids: a text file whose line N names id N - 1, or a JSON file such as {"0": "sky"}; empty:
    classes.txt or labels.json in the folder, or the layout's own names, or the ids themselves"""
    ignore: str | None = None
    """ids of pixels that are left out of losses and scores, such as 11,255; None: as in the model to start from or to
    evaluate, or 255"""
    head: Literal["upernet", "deeplabv3", "deeplabv3plus"] | None = None
    """upernet; deeplabv3, which reads the coarsest map alone; deeplabv3plus, which adds the finest one; None: as in
    the model to start from, or upernet"""
    test_scales: str = "1"
    """multi-scale test of `evaluate`: sizes of the image as shares of the usual one, such as 0.5,0.75,1,1.25; the
    probabilities are averaged"""
    test_flip: bool = False
    """`evaluate` averages over the mirrored image as well"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ignored_ids()
        self.scales()

    def scales(self) -> list[float]:
        """The sizes of the multi-scale test.

        >>> SegmentOptions(test_scales="0.5,1").scales()
        [0.5, 1.0]
        """
        try:
            scales = [float(word) for word in str(self.test_scales).split(",")]
        except ValueError:
            scales = []
        if not scales or not all(0 < scale <= MOST_SCALE for scale in scales):
            raise UserError(f"test_scales is {self.test_scales!r}; give numbers above 0 such as 0.5,1,1.5")
        return scales

    @property
    def tests_several(self) -> bool:
        """Whether an evaluation averages over several views of an image."""
        return self.scales() != [1.0] or self.test_flip

    def ignored_ids(self) -> list[int]:
        """The ids of pixels that are left out.

        >>> SegmentOptions(ignore="11,255").ignored_ids()
        [11, 255]
        """
        text = "255" if self.ignore is None else str(self.ignore)
        words = [word.strip() for word in text.split(",") if word.strip()]
        if not all(word.isdecimal() and int(word) <= MOST_ID for word in words):
            raise UserError(f"ignore is {self.ignore!r}; give ids from 0 to {MOST_ID} such as 11,255")
        return [int(word) for word in words]


@dataclass
class PanopticOptions(JitterOptions):
    """Segments of `--task panoptic`."""

    sigma: float | None = None
    """pixels of the model's image by which the centre of an instance is blurred in the heat map that is learned; None:
    as in the model to start from, or 8"""
    stuff_area: float | None = None
    """share of the image below which an area of a class without instances is left out of the answer; None: as in the
    model to start from or to evaluate, or 0.01"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "decoder_dim", 8, 4096, optional=True)
        check_range(self, "sigma", above=0, optional=True)
        check_range(self, "stuff_area", 0, 1, optional=True)

    def resolved(self) -> Self:
        """The same, where what is left open has its usual value."""
        sigma = 8.0 if self.sigma is None else self.sigma
        return replace(self, sigma=sigma, stuff_area=0.01 if self.stuff_area is None else self.stuff_area)


@dataclass
class DetectOptions(JitterOptions):
    """Boxes and masks of `--task detect`."""

    head: Literal["mask-rcnn", "cascade"] | None = None
    """mask-rcnn, or cascade: three box heads, each on the boxes of the one before; None: as in the model to start from,
    or mask-rcnn"""
    masks: bool | None = None
    """learn masks, too; false: boxes alone; None: as the model to start from, or true"""
    judged_by: Literal["box_ap", "mask_ap"] = "box_ap"
    """the score of a search and of patience: COCO's AP of boxes, or of masks"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judged_by == "mask_ap" and self.masks is False:
            raise UserError("judged_by mask_ap needs masks; leave --detect.masks false out")


@dataclass
class VQAOptions:
    """Questions of `--task vqa`."""

    answers: int = 3129
    """how many answers there are to choose from: the most frequent ones of the training questions"""
    words: int = 10000
    """how many words are known: the most frequent ones of the training questions"""
    max_words: int = 20
    """words of a question that are read"""
    text: str = ""
    """a pretrained text encoder of transformers, by its name on the Hugging Face hub or its folder: its features stand
    for the words, and it stays as it is (nasformer[vqa]); empty: words are learned from scratch"""
    decoder_dim: int | None = None
    """width of the text transformer; None: as in the model to start from, or 256"""
    depth: int | None = None
    """blocks of the text transformer; None: as in the model to start from, or 2"""
    num_maps: int | None = None
    """maps of the backbone that the words attend to, the last ones: more for small images, whose last map has a few
    positions alone; None: as in the model to start from, or 2"""

    def __post_init__(self) -> None:
        check_range(self, "answers", 2)
        for name in ("words", "max_words"):
            check_range(self, name, 1)
        check_range(self, "decoder_dim", 8, 4096, optional=True)
        check_range(self, "depth", 1, 64, optional=True)
        check_range(self, "num_maps", 1, optional=True)
        if self.decoder_dim and self.decoder_dim > 32 and self.decoder_dim % 32:
            raise UserError(f"decoder_dim is {self.decoder_dim}; give a multiple of 32, the width of a head")


@dataclass(frozen=True)
class TaskFacts:
    """The facts about a task that are needed before it is imported.

    Args:
        name: What `--task` calls it; its options are below this name, `--NAME.option`.
        about: What is learned, in a few words.
        scores: What models may be judged by, the usual score first, and what each is called in words.
        options: The dataclass of its options; None where it has none.
        averaged: Those of the scores that are means over images, so that some images tell of all.
        signs: Of a plugin's task: patterns of paths, such as "*/poses.json", that show that a folder is made for it.
    """

    name: str
    about: str
    scores: Mapping[str, str]
    options: type[Any] | None = None
    averaged: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()


CLASSIFY = TaskFacts("classify", "one class an image", {"accuracy": "accuracy"}, averaged=("accuracy",))
SEGMENT = TaskFacts("segment", "one class a pixel, from images with masks", {"miou": "mIoU"}, SegmentOptions)
DETECT = TaskFacts(
    "detect",
    "boxes and masks of objects, from COCO's JSON or PNG masks",
    {"box_ap": "box AP", "mask_ap": "mask AP"},
    DetectOptions,
)
PANOPTIC = TaskFacts(
    "panoptic", "one class a pixel, and things apart, from COCO's panoptic files", {"pq": "PQ"}, PanopticOptions
)
VQA = TaskFacts(
    "vqa",
    "answers to questions about images, from VQA's JSON",
    {"vqa_accuracy": "VQA accuracy"},
    VQAOptions,
    averaged=("vqa_accuracy",),
)
TASKS = {facts.name: facts for facts in (CLASSIFY, SEGMENT, DETECT, PANOPTIC, VQA)}
"""The facts about each task by name; `register_task` adds those of plugins."""
BUILTIN_TASKS = tuple(TASKS)
"""Modules of this package that register a task."""


def find_task(name: str) -> TaskFacts:
    """The facts about the task of this name.

    >>> find_task("segmnt")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nasformer.errors.UserError: there is no task 'segmnt', did you mean 'segment'? Known: classify, segment...
    """
    if name in TASKS:
        return TASKS[name]
    close = difflib.get_close_matches(name, TASKS, n=1)
    hint = f", did you mean {close[0]!r}? Known: " if close else "; known: "
    raise UserError(f"there is no task {name!r}{hint}{', '.join(TASKS)}; one of your own is known with --import MODULE")


def task_scores() -> dict[str, str]:
    """The scores of all tasks, and what each is called in words."""
    return {score: words for facts in TASKS.values() for score, words in facts.scores.items()}


def averaged_scores() -> set[str]:
    """The scores of all tasks that are means over images."""
    return {score for facts in TASKS.values() for score in facts.averaged}


def split_scores() -> dict[str, str]:
    """The scores of trained models, each of a task on a split, and what each is called in words.

    >>> split_scores()["holdout_miou"]
    'held-out mIoU'
    """
    splits, scores = {"test": "test", "holdout": "held-out"}.items(), task_scores().items()
    return {f"{split}_{score}": f"{name} {words}" for score, words in scores for split, name in splits}


@dataclass
class TaskOptions(OptionGroup):
    """What is learned."""

    task: str = "classify"
    """what is learned. classify: one class an image; segment: one a pixel, from images with masks; detect: boxes and
    masks of objects, from COCO's JSON or masks; panoptic: a class a pixel and things apart, from COCO's JSON;
    vqa: answers to questions about images, from VQA's JSON; or a plugin's"""
    task_options: dict[str, Any] = field(default_factory=dict)
    """the options of tasks by the name of the task, each of its own class"""

    def __post_init__(self) -> None:
        find_task(self.task)
        super().__post_init__()

    @classmethod
    def declared_groups(cls) -> tuple[str, dict[str, type[Any]]]:
        """The field that holds them, and the options of all tasks by name."""
        return "task_options", {name: facts.options for name, facts in TASKS.items() if facts.options}

    @property
    def of_task(self) -> Any:
        """The options of the chosen task, as they were given or by default; None where it has none."""
        kind = find_task(self.task).options
        return self.task_options.get(self.task) or (kind() if kind else None)

    @property
    def score(self) -> str:
        """What models are compared by: what the options of the task say, or else its usual score.

        >>> TaskOptions("detect").score, TaskOptions("segment").score
        ('box_ap', 'miou')
        """
        return getattr(self.of_task, "judged_by", None) or next(iter(find_task(self.task).scores))

    def with_task_options(self, **changes: Any) -> Self:
        """The same with other options of the chosen task."""
        return replace(self, task_options={**self.task_options, self.task: replace(self.of_task, **changes)})

    def with_left_open(self, values: Mapping[str, Any]) -> Self:
        """The same, where options of the chosen task that are None have the values of a model that has them."""
        known = {name: value for name, value in values.items() if value is not None}
        left_open = {name: value for name, value in known.items() if getattr(self.of_task, name, "unknown") is None}
        return self.with_task_options(**left_open) if left_open else self


@dataclass
class PredictOptions(OptionGroup):
    """Which images to answer, and how."""

    images: list[str] = field(default_factory=list)
    """the image files, or folders of them"""
    top: int = 5
    """how many classes to name"""
    out: str = ""
    """the folder for masks and overlays of each image, of a model that gives more than one class an image"""
    question: str = ""
    """of a model that answers questions: what to ask about each image"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""

    def __post_init__(self) -> None:
        check_range(self, "top", 1)
        super().__post_init__()

    def folder(self, what: str) -> Path:
        """The folder that a task writes into, which is made."""
        if not self.out:
            raise UserError(f"say where its {what} shall go: --out FOLDER")
        Path(self.out).mkdir(parents=True, exist_ok=True)
        return Path(self.out)
