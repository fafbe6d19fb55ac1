"""Questions about images: nets beside the most frequent answer and a net that sees the questions alone.

    pip install easy-vqa
    python benchmarks/vqa.py --easy-vqa easy --train-images 1000 --out record.json --nets s3-micro:smallest
    python benchmarks/vqa.py --data daquar_mini --img-size 128 --nets s3-micro:smallest

A net is SPACE:ARCH (from scratch), FOLDER (a model of a run, whose backbone is trained on) or ours:timm:NAME:FILE (a
net of timm with its weights). Each is trained twice by one recipe: with the images, and with grey ones in their place.
All scores are VQA accuracies of the test questions with the weights of the last step, so nothing is chosen on any
image. `--easy-vqa FOLDER` first writes the questions and images of the package easy-vqa there in VQA's format.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from nasformer.data.files import BadImages
from nasformer.data.loaders import ImageText, Split
from nasformer.data.options import AugmentOptions
from nasformer.tasks.options import VQAOptions
from nasformer.tasks.vqa import QuestionBatches, best_answer, open_questions
from nasformer.train.evaluate import evaluate
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from nasformer.utils.device import choose_device
from record import add_side_by_side, benchmark_parser, mean_and_spread, run_side_by_side
from segmentation import build_ours


def write_easy_vqa(root: Path) -> None:
    """The package's questions as train/ and test/ with questions.json and images."""
    import easy_vqa

    parts = {
        "train": (easy_vqa.get_train_questions(), easy_vqa.get_train_image_paths()),
        "test": (easy_vqa.get_test_questions(), easy_vqa.get_test_image_paths()),
    }
    for part, (asked, paths) in parts.items():
        (root / part / "images").mkdir(parents=True, exist_ok=True)
        for number, path in paths.items():
            shutil.copy(path, root / part / "images" / f"{number}.png")
        rows = [dict(zip(("question", "answer", "image_id"), row, strict=True)) for row in zip(*asked, strict=True)]
        questions = [
            {"question_id": number, "image_id": row["image_id"], "question": row["question"]}
            for number, row in enumerate(rows)
        ]
        annotations = [
            {"question_id": number, "answers": [{"answer": row["answer"]}], "multiple_choice_answer": row["answer"]}
            for number, row in enumerate(rows)
        ]
        content = {"questions": questions, "annotations": annotations}
        (root / part / "questions.json").write_text(json.dumps(content), encoding="utf-8")


class QuestionsAlone(QuestionBatches):
    """The same questions about images that are grey all over."""

    def fitted(self, split: Split, parts: Iterable[Any]) -> Iterator[tuple[ImageText, Any]]:
        for x, targets in super().fitted(split, parts):
            yield ImageText(torch.zeros_like(x.images), x.words), targets


def build(net: str, batches: QuestionBatches, args: argparse.Namespace, seed: int) -> nn.Module:
    head = {"decoder_dim": args.decoder_dim, "depth": args.depth, "num_maps": args.num_maps, **batches.head_options}
    return build_ours(net, batches, "vqa", seed, args.patch_size, **head)


def most_frequent(batches: QuestionBatches) -> float:
    """The accuracy of the answer that most training questions have."""
    asked = batches.vocabulary.questions
    answers = Counter(best_answer(asked[name]) for name in batches.files["train"].masks)
    guess = answers.most_common(1)[0][0]
    return fmean(asked[name].scores.get(guess, 0.0) for name in batches.files["test"].masks)


def measure(net: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """VQA accuracy with the images, with the questions alone, and of the most frequent answer."""
    device, options = choose_device(args.device), VQAOptions(max_words=args.max_words)
    amounts = {"holdout": 0, "seed": seed, "train_images": args.train_images}
    data = open_questions(Path(args.data), options, BadImages(quiet=True), **amounts)
    recipe = Recipe(epochs=args.epochs, batch_size=args.batch_size, lr=args.lr, clip_grad=1.0)
    settings: dict[str, Any] = {"device": device, "img_size": args.img_size, "workers": args.workers}
    found = dict[str, Any]()
    for name, kind in (("with_images", QuestionBatches), ("questions_alone", QuestionsAlone)):
        batches = kind(data, AugmentOptions(), args.batch_size, seed, options=options, **settings)
        model = build(net, batches, args, seed).to(device)
        train_model(model, batches, recipe, seed=seed, quiet=not args.verbose, label=f"{net}, {name}")
        found[name] = evaluate(model, batches, "test")["vqa_accuracy"]
    sizes = {f"{split}_questions": len(batches.files[split]) for split in ("train", "test")}
    params = sum(weight.numel() for weight in model.parameters())
    return {"params": params, **sizes, **found, "most_frequent_answer": most_frequent(batches)}


def summarise(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    scores = ("with_images", "questions_alone", "most_frequent_answer")
    results = dict[str, Any]()
    for net, seeds in found.items():
        means = {name: value for score in scores for name, value in mean_and_spread(seeds, score).items()}
        results[net] = {**seeds[0], **means, "seeds": seeds}
    return results


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data")
    parser.add_argument("--easy-vqa", metavar="FOLDER", help="write the package's questions there and take them")
    parser.add_argument("--img-size", type=int, default=64)
    parser.add_argument("--patch-size", type=int)
    parser.add_argument("--train-images", type=int)
    parser.add_argument("--max-words", type=int, default=20)
    parser.add_argument("--decoder-dim", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--num-maps", type=int, default=2, help="maps of the net that words attend to, the last ones")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--verbose", action="store_true")
    add_side_by_side(parser)
    args = parser.parse_args()
    if args.easy_vqa:
        args.data = args.easy_vqa
        if not args.child:
            write_easy_vqa(Path(args.data))
    run_side_by_side("vqa", args, lambda net, seed: measure(net, seed, args), summarise)


if __name__ == "__main__":
    main()
