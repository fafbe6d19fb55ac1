"""Accuracy against MACs of a pretrained net that is cut without training: searched beside uniform archs.

python benchmarks/pretrained_curve.py --net timm:deit_tiny_patch16_224:weights.safetensors --data imagenet.npz \
    --budgets 90 80 70 60 50 --out curve.json

The .npz holds `images` (uint8, N x H x W x 3, of the net's size) and `labels` of the net's own classes. Half of the
images sort, fit and judge the candidates by agreement with the full net, without their labels; the accuracy is that on
the other half. Then the halves change places, so that all images count once.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nasformer.models.space import Space
from nasformer.search.run import search
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, uniform_arch
from nasformer.supernet.importance import Compensation, sort_by_importance
from nasformer.supernet.storage import Pretrained, find_pretrained, supernet_from
from nasformer.train.evaluate import autocast
from record import benchmark_parser, save_record

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NEAR = 0.95
"""Searched archs have from this share of a budget on."""
Extract = Callable[[Arch], nn.Module]


def load(path: str, source: Pretrained, count: int | None) -> tuple[list[Tensor], list[Tensor]]:
    """Normalised images and labels, in two halves."""
    arrays = np.load(path)
    order = np.random.RandomState(0).permutation(len(arrays["labels"]))[:count]
    pixels = torch.from_numpy(arrays["images"][order]).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (source.facts.mean, source.facts.std))
    images, labels = ((pixels - mean) / std).to(DEVICE), torch.from_numpy(arrays["labels"][order]).long().to(DEVICE)
    return list(images.chunk(2)), list(labels.chunk(2))


@torch.no_grad()
def probabilities(model: nn.Module, images: Tensor) -> Tensor:
    with autocast(DEVICE):
        return torch.cat([model(part).float().softmax(-1) for part in images.split(256)])


def ways(source: Pretrained, space: Space, images: Tensor, importance: str) -> dict[str, Extract]:
    """How an arch is cut out: from the net as it is or sorted, bare or compensated."""
    found: dict[str, Extract] = {}
    parts = list(images.split(64))
    for order in ("sorted", "unsorted"):
        full = copy.deepcopy(source.model).to(DEVICE)
        if order == "sorted":
            sort_by_importance(full, ((part, None) for part in parts), importance)
        supernet = supernet_from(full, space).eval()
        found[f"{order}, bare"] = supernet.extract
        found[f"{order}, compensated"] = Compensation(supernet, parts).extract
    return found


def best(space: Space, extract: Extract, images: Tensor, answers: Tensor, budget: Budget, args: Any) -> Arch:
    """The arch that agrees most with the full net's answers."""

    def agreement(arch: Arch) -> dict[str, float]:
        return {"agreement": torch.minimum(answers, probabilities(extract(arch), images)).sum(-1).mean().item()}

    options = {"population": args.population, "generations": args.generations}
    found = search(
        space, agreement, space.costs, options=options, budget=budget, objectives=("agreement",), seed=args.seed
    )
    return found.best.arch


def fold(source: Pretrained, given: Tensor, unseen: Tensor, labels: Tensor, args: Any) -> dict[str, Any]:
    """Accuracies on the unseen half by budget and way; the other half, without labels, is all that decides."""
    space, start = source.space, time.perf_counter()
    fitting, judging = given.chunk(2)
    whole = space.costs(space.root.largest())["macs"]
    answers = probabilities(source.model.to(DEVICE), judging)
    rows: dict[str, Any] = {"full": {"macs": 1.0, "accuracy": accuracy(source.model, unseen, labels)}}
    found = ways(source, space, fitting, args.importance)
    for share in args.budgets:
        high = share / 100 * whole
        uniform = uniform_arch(space.root, space.costs, Budget(max_macs=high))
        archs = {f"uniform, {way}": (uniform, extract) for way, extract in found.items()}
        for way in ("sorted, compensated", "unsorted, compensated", "sorted, bare"):
            budget = Budget(min_macs=NEAR * high, max_macs=high)
            archs[f"searched, {way}"] = best(space, found[way], judging, answers, budget, args), found[way]
        for name, (arch, extract) in archs.items():
            if arch is not None:
                macs = space.costs(arch)["macs"] / whole
                score = accuracy(extract(arch), unseen, labels)
                rows[f"{share} {name}"] = {"macs": macs, "accuracy": score, "arch": arch.to_dict()}
                print(f"{share:3} {name:36} {macs:6.1%} of the MACs  {score:6.1%}", flush=True)
    return {"rows": rows, "seconds": time.perf_counter() - start}


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return (probabilities(model, images).argmax(-1) == labels).float().mean().item()


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--net", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--budgets", type=int, nargs="+", default=[90, 80, 70, 60, 50])
    parser.add_argument("--population", type=int, default=40)
    parser.add_argument("--generations", type=int, default=10)
    parser.add_argument("--importance", default="surgeon")
    parser.add_argument("--images", type=int, help="so many of the images only")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    source = find_pretrained(args.net)
    (first, second), (first_labels, second_labels) = load(args.data, source, args.images)
    folds = [fold(source, first, second, second_labels, args), fold(source, second, first, first_labels, args)]
    summary = {
        name: {key: fmean(one["rows"][name][key] for one in folds) for key in ("macs", "accuracy")}
        for name in folds[0]["rows"]
        if name in folds[1]["rows"]
    }
    for name, row in summary.items():
        print(f"{name:40} {row['macs']:6.1%} of the MACs  {row['accuracy']:6.1%}")
    save_record("pretrained_curve", vars(args), {"summary": summary, "folds": folds}, args.out, quiet=True)


if __name__ == "__main__":
    main()
