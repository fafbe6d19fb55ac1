"""Which reading of the Entropic Score agrees with the accuracy of trained nets?

python benchmarks/readings_of_trained.py benchmarks/records/same_recipe-h200.json --out readings_of_trained.json

Takes records of `same_recipe.py`, scores our archs in them by every reading, with Kaiming's weights by fan-in and by
fan-out, and prints Kendall's tau with the accuracy, beside LogSynflow and plain counts. The archs should be of about
equal cost, or tau speaks of size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import nasformer
from entropic_readings import INITS, share_of_ibn
from nasformer.proxies.entropy import entropies
from nasformer.proxies.parts import noise_probe
from nasformer.proxies.scoring import image_shape, score_model
from nasformer.utils.statistics import kendall
from record import benchmark_parser, save_record


def trained(paths: list[str]) -> list[tuple[dict[str, Any], float]]:
    """The models of several records that are of ours, with their accuracy by the first seed."""
    found = []
    for path in paths:
        results = json.loads(Path(path).read_text())["results"]
        for name, runs in results["runs"].items():
            if "space" in results["models"][name] and runs and "accuracy" in runs[0]:
                found.append((results["models"][name], runs[0]["accuracy"]))
    return found


def scores(entry: dict[str, Any], img_size: int) -> dict[str, float]:
    space = nasformer.get_space(entry["space"], img_size=img_size)
    arch, probe = space.arch(entry["arch"]), noise_probe(*image_shape(space), batch_size=8)
    cost, model = space.cost(arch), space.build(arch).eval()  # with any weights: every score here draws its own
    row = {"params": cost.params, "macs": cost.macs, "IBN share": share_of_ibn(arch)}
    row |= {name: score.mean for name, score in score_model(model, "logsynflow", probe).items()}
    for init, draw in INITS.items():
        row |= {f"{name}, {init}": value for name, value in entropies(model, probe, draw=draw).items()}
    return row


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("records", nargs="+", help="what same_recipe.py wrote")
    parser.add_argument("--img-size", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)
    nets = trained(args.records)
    rows = [scores(entry, args.img_size) for entry, _ in nets]
    taus = {name: kendall([row[name] for row in rows], [accuracy for _, accuracy in nets]) for name in rows[0]}
    for name, tau in taus.items():
        print(f"{name:22} {tau:+.2f}")
    save_record("readings_of_trained", vars(args), {"nets": len(nets), "kendall": taus}, args.out)


if __name__ == "__main__":
    main()
