"""Questions about images: an answer is chosen from the frequent ones, learned from VQA's JSON files.

The words of a question attend to each other and to the last maps of the backbone (`layers/vqa.py`). S3 uses SOHO (Huang
et al. 2021) in its place, on the last map alone. Left out of that: its visual dictionary (as S3 does), the pre-training
on captions (masked words, masked image regions, matching of image and text), and one transformer over words and image
tokens together. The weights of the text begin at random, or a pretrained encoder of transformers, such as BERT, reads
the words and stays as it is (`--vqa.text`).

Accuracy is VQA's own where a question has ten answers: each human's is compared with those of the nine others, and
min(same answers / 3, 1) is averaged. Otherwise the answer must be the `multiple_choice_answer`. Texts are compared in
lower case, without punctuation and articles, with numbers as digits; the official list of contractions is left out.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor, nn

from nasformer.data.files import BadImages
from nasformer.data.images import SplitAmounts, Splits, make_splits, normalise
from nasformer.data.loaders import BatchSource, ImageText, Split
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import made_for
from nasformer.errors import UserError, one_line
from nasformer.layers.vqa import UNKNOWN, encode, split_words, word_numbers
from nasformer.models.dense import dense_space
from nasformer.models.space import Space
from nasformer.models.storage import facts_in
from nasformer.tasks.batches import FileBatches, FileTask, fit, read_named, read_pixels
from nasformer.tasks.masks import IMAGE_ENDINGS, FileData, MaskFiles, as_picture, check_all, check_image, val_and_test
from nasformer.tasks.options import VQA, PredictOptions, VQAOptions
from nasformer.tasks.registry import Prediction, TrainedModel, register_task
from nasformer.train.evaluate import SHARED_PROBABILITY, Objective, predictions
from nasformer.train.loss import Answers
from nasformer.utils.device import World
from nasformer.utils.files import lacking, read_annotations
from nasformer.utils.schema import from_json

EVALUATION_BATCH = 128
HUMANS = 10
"""Answers to a question from which on VQA's own accuracy counts."""
AGREE = 3
PARTS = ("train", "val", "test")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NUMBERS = {word: str(number) for number, word in enumerate(DIGITS)}
ARTICLES = {"a", "an", "the"}
WORST = 3
T = TypeVar("T")
LINE = 40  # letters of a line below a picture


# Texts


def normal_answer(text: str) -> str:
    """An answer in the form in which answers are compared.

    >>> normal_answer("The two Chairs."), normal_answer("3.5 m")
    ('2 chairs', '3.5 m')
    """
    words = re.sub(r"[^\w\s'.:]|\.(?!\d)", " ", text.lower()).split()
    return " ".join(NUMBERS.get(word, word) for word in words if word not in ARTICLES)


def answer_scores(answers: Sequence[str], chosen: str) -> dict[str, float]:
    """What each answer to a question is worth.

    >>> answer_scores(["cat"], "cat")
    {'cat': 1.0}
    >>> scores = answer_scores(["cat"] * 7 + ["dog"] * 2 + ["cow"], "cat")
    >>> {answer: round(score, 2) for answer, score in scores.items()}
    {'cat': 1.0, 'dog': 0.6, 'cow': 0.3}
    """
    if len(answers) < HUMANS:
        return {chosen: 1.0}
    counts = Counter(answers)
    return {
        answer: sum(min(1.0, (count - (other == answer)) / AGREE) for other in answers) / len(answers)
        for answer, count in counts.items()
    }


@dataclass(frozen=True)
class Question:
    """A question, and what each answer to it is worth."""

    text: str
    scores: Mapping[str, float]

    @property
    def kind(self) -> str:
        """Its first word."""
        return next(iter(split_words(self.text)), "")


@dataclass(frozen=True)
class Vocabulary:
    """The answers to choose from, the words of the vocabulary, and all questions by name."""

    classes: list[str]
    words: list[str]
    questions: Mapping[str, Question]

    @classmethod
    def of(cls, train: Sequence[Question], questions: Mapping[str, Question], options: VQAOptions) -> Vocabulary:
        answers = Counter(best_answer(question) for question in train)
        words = Counter(word for question in train for word in split_words(question.text))
        if len(answers) < 2:
            raise UserError(f"the training questions have {len(answers)} answers; there must be two or more to choose")
        return cls(most_frequent(answers, options.answers), most_frequent(words, options.words), questions)

    def targets(self, question: Question) -> Tensor:
        """What each answer is worth, [answers]."""
        return torch.tensor([question.scores.get(answer, 0.0) for answer in self.classes])


def best_answer(question: Question) -> str:
    return max(question.scores, key=lambda answer: question.scores[answer])


def most_frequent(counts: Counter[str], most: int) -> list[str]:
    """The most frequent texts, in an order that does not depend on that of the files."""
    return [text for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]]


class TextEncoder:
    """A pretrained text encoder of transformers, whose weights stay as they are.

    So its features of a question are computed once and kept.

    Args:
        source: Its name on the Hugging Face hub, or a folder.
        length: Tokens of a question that are read.
    """

    def __init__(self, source: str, length: int) -> None:
        self.source, self.length, self.features_of = source, length, dict[str, Tensor]()

    @cached_property
    def parts(self) -> tuple[Any, Any]:
        """Tokenizer and model."""
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError:
            raise UserError("--vqa.text needs transformers; install it: pip install 'nasformer[vqa]'") from None
        try:
            tokenizer, model = AutoTokenizer.from_pretrained(self.source), AutoModel.from_pretrained(self.source)
        except Exception as error:  # no such name or folder, no network: transformers raises a dozen kinds
            reason = one_line(error, 200)
            raise UserError(f"cannot load the text encoder {self.source} ({reason}); check its name") from error
        return tokenizer, model.eval().requires_grad_(False)

    @property
    def dim(self) -> int:
        """Features of a token."""
        return int(self.parts[1].config.hidden_size)

    def __call__(self, texts: Sequence[str], device: torch.device) -> Tensor:
        """Features [texts, tokens, dim]; zeros behind the last token of each."""
        new = [text for text in dict.fromkeys(texts) if text not in self.features_of]
        if new:
            self.features_of |= dict(zip(new, self.features(new, device).half().cpu(), strict=True))
        return torch.stack([self.features_of[text] for text in texts]).to(device, torch.float32)

    @torch.no_grad()
    def features(self, texts: Sequence[str], device: torch.device) -> Tensor:
        tokenizer, model = self.parts
        shape = {"padding": "max_length", "truncation": True, "max_length": self.length}
        tokens = tokenizer(list(texts), return_tensors="pt", **shape).to(device)
        output = model.to(device)(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
        return output.last_hidden_state * tokens["attention_mask"][..., None]

    def __getstate__(self) -> dict[str, Any]:
        """Without the weights, which another process loads itself."""
        return {"source": self.source, "length": self.length, "features_of": {}}


# Files


@dataclass(frozen=True)
class QuestionFiles:
    """The JSON files of a part, and the folder of its images."""

    questions: Path
    annotations: Path
    images: Path


def find_files(root: Path, part: str) -> QuestionFiles | None:
    """PART/questions.json with PART/images, the answers in the same file or in annotations.json; or VQA's own names."""
    questions = root / part / "questions.json"
    if questions.is_file():
        annotations, images = root / part / "annotations.json", root / part / "images"
        others = (annotations if annotations.is_file() else questions, images if images.is_dir() else root / part)
        return QuestionFiles(questions, *others)
    named = [sorted(root.glob(f"*{part}*_{what}.json")) for what in ("questions", "annotations")]
    folders = sorted(path for path in root.glob(f"{part}*") if path.is_dir())
    return QuestionFiles(named[0][0], named[1][0], folders[0]) if all([*named, folders]) else None


@dataclass(frozen=True)
class QuestionEntry:
    """An entry of `questions`."""

    question_id: int | str
    image_id: int
    question: str


@dataclass(frozen=True)
class QuestionsFile:
    """A file of questions, as VQA has them."""

    questions: list[QuestionEntry]


@dataclass(frozen=True)
class GivenAnswer:
    """An entry of `answers`."""

    answer: str | int | float


@dataclass(frozen=True)
class AnswerEntry:
    """An entry of `annotations`."""

    question_id: int | str
    answers: list[GivenAnswer]
    multiple_choice_answer: str | int | float


@dataclass(frozen=True)
class AnswersFile:
    """A file of answers, as VQA has them; it may be the same."""

    annotations: list[AnswerEntry]


def read_entries(cls: type[T], path: Path, name: str, keys: Sequence[str]) -> T:
    content = read_annotations(path)
    if key := lacking(content.get(name), keys):
        raise UserError(f"{path}: an entry of {name} has no {key}; add it to all")
    return from_json(cls, content, path, "give questions and annotations in the format of VQA")


def read_part(files: QuestionFiles, bad: BadImages) -> tuple[dict[str, list[str]], dict[str, Question]]:
    """The names of the questions about each image, and the questions; unusable ones are recorded and left out."""
    paths, answered = numbered_images(files.images, bad), read_answers(files, bad)
    keys, names = ("question_id", "image_id", "question"), set[str]()
    by_image, questions = dict[str, list[str]](), dict[str, Question]()
    for entry in read_entries(QuestionsFile, files.questions, "questions", keys).questions:
        name, scores = f"{files.questions}, question {entry.question_id}", answered.get(entry.question_id)
        if name in names:
            bad.add(f"{name} ({entry.question})", "another question has its question_id")
        elif scores is None:
            bad.add(name, "it has no answer")
        elif not scores:
            bad.add(name, "its answer is empty")
        elif entry.image_id not in paths:
            bad.add(name, f"there is no image {entry.image_id} in {files.images}")
        elif not split_words(entry.question):
            bad.add(name, "it has no words")
        else:
            questions[name] = Question(entry.question, scores)
            by_image.setdefault(paths[entry.image_id], []).append(name)
        names.add(name)
    for identity in answered:
        if f"{files.questions}, question {identity}" not in names:
            bad.add(f"{files.annotations}, answers to {identity}", "there is no such question")
    return by_image, questions


def numbered_images(folder: Path, bad: BadImages) -> dict[int, str]:
    """Image files by the last number in their name; a second one with the same number is recorded."""
    paths = dict[int, str]()
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in IMAGE_ENDINGS and (digits := re.findall(r"\d+", path.stem)):
            if (number := int(digits[-1])) in paths:
                bad.add(str(path), f"{Path(paths[number]).name} has the number {number} as well")
            paths.setdefault(number, str(path))
    return paths


def read_answers(files: QuestionFiles, bad: BadImages) -> dict[int | str, dict[str, float]]:
    """What each answer is worth, by question; a second list of answers to a question is recorded."""
    keys, answered = ("question_id", "answers", "multiple_choice_answer"), dict[int | str, dict[str, float]]()
    for number, entry in enumerate(read_entries(AnswersFile, files.annotations, "annotations", keys).annotations):
        if entry.question_id in answered:
            bad.add(f"{files.annotations}, annotation {number}", f"question {entry.question_id} has answers before")
            continue
        texts = [normal_answer(str(given.answer)) for given in entry.answers]
        scores = answer_scores(texts, normal_answer(str(entry.multiple_choice_answer)))
        answered[entry.question_id] = {answer: score for answer, score in scores.items() if answer}
    return answered


def open_questions(root: Path, options: VQAOptions, bad: BadImages, **amounts: Unpack[SplitAmounts]) -> FileData:
    """Questions in three parts; questions about one image stay together. Without test, val is the test part."""
    files = {part: named for part in PARTS if (named := find_files(root, part))}
    if "train" not in files:
        raise UserError(
            f"{root} has no questions; expected train/questions.json and train/images (likewise val and test), or "
            "VQA's own files (…train2014_questions.json, …train2014_annotations.json) and images in train2014"
            f"{made_for(root, 'vqa')}"
        )
    read = {part: read_part(of_part, bad) for part, of_part in files.items()}
    questions = {name: question for _, of_part in read.values() for name, question in of_part.items()}
    total = len(questions) + len(bad.reasons)
    bad.check(total, str(root))
    vocabulary = Vocabulary.of(list(read["train"][1].values()), questions, options)
    parts = {part: MaskFiles(list(by_image), [""] * len(by_image)) for part, (by_image, _) in read.items()}
    splits = make_splits(parts["train"], *val_and_test(parts), vocabulary.classes, **amounts)
    questions_of = {path: names for by_image, _ in read.values() for path, names in by_image.items()}
    usable = readable_images(list(questions_of), bad)
    train, held_out, test_part = (ask_all(part, questions_of, usable) for part in splits.parts())
    bad.check(total, str(root))
    bad.tell(total, str(root))
    if not len(train) or not len(test_part):
        raise UserError(f"{root}: no question of the train or of the test part can be used; check questions and images")
    flat = Splits(train, held_out, test_part, vocabulary.classes, splits.notes)
    return FileData(flat, sum(usable.values()), vocabulary)


def readable_images(paths: Sequence[str], bad: BadImages) -> dict[str, int]:
    """The pixels of each image; unreadable ones are recorded and left out."""
    sizes = check_all(paths, lambda index: check_image(paths[index]), bad)
    return {path: size[0] * size[1] for path, size in zip(paths, sizes, strict=True) if size}


def ask_all(part: MaskFiles, questions_of: Mapping[str, list[str]], usable: Mapping[str, int]) -> MaskFiles:
    """Every question about the images of a part: images, some several times, and names of questions."""
    pairs = [(path, name) for path in part.images if path in usable for name in questions_of[path]]
    return MaskFiles([path for path, _ in pairs], [name for _, name in pairs])


# Loss and metric


def answer_loss(logits: Tensor, images: Any, targets: Tensor) -> Tensor:
    """Binary cross-entropy of each answer with what it is worth, summed over the answers."""
    return F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="sum") / len(targets)


def taught_answers(logits: Tensor, targets: Tensor, answers: Answers) -> Tensor:
    """Worths of the answers, into which the chances that a teacher gives them are mixed; they need not sum to 1."""
    chances = logits.sigmoid()
    return answers.mix(targets, (chances > 0.5).to(chances) if answers.hard else chances)


def answer_outcomes(logits: Tensor, targets: Tensor) -> Tensor:
    """What the answer to each question is worth, and its loss: [2, questions]."""
    losses = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").sum(1)
    return torch.stack([targets.gather(1, logits.argmax(1, keepdim=True))[:, 0], losses])


class VQAAccuracy:
    """The mean worth of the chosen answers."""

    def __init__(self) -> None:
        self.images, self.sums, self.by_question = 0, torch.zeros(2, dtype=torch.float64), list[float]()

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Adds questions: logits and worths of all answers."""
        worth = targets.gather(1, logits.argmax(1, keepdim=True))[:, 0]
        loss = answer_loss(logits, None, targets) * len(targets)
        self.sums = self.sums + torch.stack([worth.sum(), loss]).double().cpu()
        self.by_question += worth.tolist()
        self.images += len(targets)

    def combine(self, world: World, device: torch.device) -> None:
        totals = world.sum(torch.cat([self.sums, torch.tensor([float(self.images)])]).to(device))
        self.sums, self.images = totals[:2].cpu(), round(float(totals[2]))

    def compute(self) -> dict[str, float]:
        worth, loss = (self.sums / self.images).tolist()
        return {"vqa_accuracy": worth, "loss": loss}


@dataclass(frozen=True)
class KindScore:
    """The results of a model on the questions that begin with one word."""

    name: str
    questions: int
    accuracy: float


@dataclass(frozen=True)
class VQAEvaluation:
    """How a model does on a split."""

    scores: dict[str, float]
    by_class: list[KindScore]
    by_image: list[float]
    """how sure the model is of answers that are worth something, for each question"""

    def sentences(self) -> list[str]:
        worst = sorted(self.by_class, key=lambda kind: kind.accuracy)[:WORST]
        words = ", ".join(f"{kind.name} … {kind.accuracy:.2%} of {kind.questions}" for kind in worst)
        return [
            f"VQA accuracy {self.scores['vqa_accuracy']:.2%} of {self.scores['images']} questions",
            f"worst: {words}",
        ]

    def to_json(self) -> dict[str, Any]:
        return {**self.scores, "by_class": [asdict(kind) for kind in self.by_class]}


# Batches


def example_targets(images: int, batches: BatchSource) -> Tensor:
    return torch.zeros(images, batches.num_classes)


OBJECTIVE = Objective(
    "vqa_accuracy",
    answer_loss,
    lambda batches: VQAAccuracy(),
    EVALUATION_BATCH,
    example_targets,
    taught=taught_answers,
    outcomes=answer_outcomes,
    agreement=SHARED_PROBABILITY,
)


class QuestionBatches(FileBatches):
    """Batches of images with questions; each question counts as an image does in other tasks."""

    task, objective, calibration_batch = VQA, OBJECTIVE, EVALUATION_BATCH

    mirrored = False
    """Questions ask for left and right."""

    def __init__(self, data: FileData, augment: AugmentOptions, *args: Any, **options: Any) -> None:
        if augment.hflip:
            raise UserError("questions ask for left and right; leave --train.augment.hflip out with --task vqa")
        super().__init__(data, augment, *args, **options)
        self.numbers, self.squares = word_numbers(self.vocabulary.words), dict[str, Tensor]()
        self.encoder = TextEncoder(self.options.text, self.options.max_words) if self.options.text else None

    @property
    def vocabulary(self) -> Vocabulary:
        return self.data.labels

    @property
    def head_options(self) -> dict[str, int]:
        """Options of the head that follow from the questions."""
        if self.encoder:
            return {"text_dim": self.encoder.dim, "max_words": self.options.max_words}
        return {"vocab_size": len(self.numbers) + UNKNOWN + 1, "max_words": self.options.max_words}

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the questions that are saved with a model."""
        encoder = {"text_encoder": self.options.text} if self.encoder else {}
        return {"words": self.vocabulary.words, **encoder}

    def adopt(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Takes over the answers and words of a model to judge it by: its training questions may have been others."""
        if not {"classes", "words"} <= set(facts):
            raise UserError("the model does not say which answers and words it knows; train it again")
        vocabulary = replace(self.vocabulary, classes=list(facts["classes"]))
        self.data, self.classes = replace(self.data, labels=vocabulary), vocabulary.classes
        self.adopt_words(options, facts)

    def adopt_words(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Takes over the words of a model alone, to train it further: its weights stand for them."""
        vocabulary = replace(self.vocabulary, words=list(facts["words"]))
        self.data, self.numbers = replace(self.data, labels=vocabulary), word_numbers(vocabulary.words)
        self.options = replace(self.options, max_words=options["max_words"], text=facts.get("text_encoder", ""))
        self.encoder = TextEncoder(self.options.text, self.options.max_words) if self.options.text else None

    def item(self, files: MaskFiles, index: int) -> tuple[Tensor, Tensor, str]:
        """An image in the square of the model, what each answer to a question about it is worth, and the question."""
        question, path = self.vocabulary.questions[files.masks[index]], files.images[index]
        square = self.squares.get(path)
        if square is None:
            square = fit(read_pixels(path, self.in_chans), self.img_size, self.fill)
            if not self.streamed:
                self.squares[path] = square
        return square, self.vocabulary.targets(question), question.text

    def text(self, questions: Sequence[str]) -> Tensor:
        """Questions as the head takes them: the numbers of their words, or an encoder's features."""
        if self.encoder:
            return self.encoder(questions, self.device)
        words = [encode(question, self.numbers, self.options.max_words) for question in questions]
        return torch.stack(words).to(self.device, non_blocking=True)

    def fitted(self, split: Split, parts: Iterable[Tensor]) -> Iterator[tuple[ImageText, Tensor]]:
        files = self.files[split]
        items_of = ([(index,) for index in part.tolist()] for part in parts)
        for items in self.loaded(lambda index: self.item(files, index), items_of):
            squares, worths, questions = zip(*items, strict=True)
            targets = torch.stack(worths).to(self.device, non_blocking=True)
            yield ImageText(self.normalised(torch.stack(squares)), self.text(questions)), targets

    def train_batches(self, start_step: int = 0) -> Iterator[tuple[Any, Any]]:
        return self.fitted("train", map(self.train_part, count(start_step)))

    def truths(self, contents: Any) -> Any:
        """What each answer is worth, which `fitted` has put on the device."""
        return contents


# The task


@register_task
class VisualQuestions(FileTask):
    """Questions about images, by a text transformer on the last maps of a backbone."""

    facts, objective, batches, batch_norm = VQA, OBJECTIVE, QuestionBatches, False

    def space(self, space: Space, options: VQAOptions) -> Space:  # type: ignore[override]
        sizes = {"decoder_dim": options.decoder_dim, "depth": options.depth, "num_maps": options.num_maps}
        return dense_space(space, self.name, **sizes)

    def open(self, root: Path, options: Any, bad: BadImages, **amounts: Any) -> FileData:
        bad.what = "questions and images cannot be used"
        return open_questions(root, options, bad, **amounts)

    def judge(self, model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> VQAEvaluation:
        assert isinstance(batches, QuestionBatches)
        metric, sure = VQAAccuracy(), list[float]()
        for logits, targets in predictions(model, batches, split):
            metric.update(logits, targets)
            sure += (logits.float().softmax(1) * targets).sum(1).tolist()
        kinds = dict[str, list[float]]()
        for name, worth in zip(batches.files[split].masks, metric.by_question, strict=True):
            kinds.setdefault(batches.vocabulary.questions[name].kind, []).append(worth)
        by_class = [KindScore(kind, len(worths), sum(worths) / len(worths)) for kind, worths in sorted(kinds.items())]
        return VQAEvaluation({**metric.compute(), "images": metric.images}, by_class, sure)

    def picture(self, model: nn.Module, batches: QuestionBatches, split: Split, index: int) -> Image.Image:
        ((logits, _),) = predictions(model, batches, split, numbers=torch.tensor([index]))
        files = batches.files[split]
        question = batches.vocabulary.questions[files.masks[index]]
        answer = batches.classes[int(logits[0].argmax())]
        lines = [question.text, f"answer: {answer}", f"right: {best_answer(question)}"]
        return with_text(as_picture(read_pixels(files.images[index], batches.in_chans)), lines)

    @torch.inference_mode()
    def predict(self, trained: TrainedModel, options: PredictOptions) -> Iterator[Prediction]:
        if not options.question:
            raise UserError('say what to ask about the images: --question "what is on the table?"')
        if not split_words(options.question):
            raise UserError(f'the question {options.question!r} has no words; ask like "what is on the table?"')
        model, facts = trained.model.eval(), facts_in(trained.folder)
        if "words" not in facts:
            raise UserError(f"{trained.folder} does not say which words it knows; train or extract the model again")
        length, device = model.options["max_words"], next(model.parameters()).device
        if facts.get("text_encoder"):
            words = TextEncoder(facts["text_encoder"], length)([options.question], device)
        else:
            words = encode(options.question, word_numbers(facts["words"]), length)[None].to(device)
        for file in options.images:
            image = read_named(file, trained.in_chans)
            square = fit(image, trained.img_size, [round(255 * value) for value in trained.mean])
            x = normalise(square[None].to(device), trained.mean, trained.std)
            chances = model(ImageText(x, words)).float().sigmoid()[0]
            values, indices = chances.topk(min(options.top, len(trained.classes)))
            answers = [trained.classes[index] for index in indices.tolist()]
            yield AnswerPrediction(file, options.question, answers, values.tolist())


@dataclass(frozen=True)
class AnswerPrediction:
    """The most probable answers to a question about an image, the best first."""

    file: str
    question: str
    answers: list[str]
    probabilities: list[float]

    def __str__(self) -> str:
        pairs = zip(self.answers, self.probabilities, strict=True)
        return f"{self.file}: " + ", ".join(f"{answer} {chance:.1%}" for answer, chance in pairs)


def with_text(picture: Image.Image, lines: Sequence[str]) -> Image.Image:
    """A picture with lines of text below it."""
    wrapped = [part for line in lines for part in textwrap.wrap(line, LINE) or [""]]
    below = Image.new("RGB", (max(picture.width, 7 * LINE), picture.height + 14 * len(wrapped) + 4), "white")
    below.paste(picture, (0, 0))
    ImageDraw.Draw(below).multiline_text((2, picture.height + 2), "\n".join(wrapped), fill="black")
    return below
