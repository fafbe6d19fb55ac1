"""Does the demo's search pay? Runs its recipe over several seeds and sets each winner beside random nets of its cost.

python benchmarks/demo_seeds.py --runs runs/demo-seeds --out benchmarks/records/demo_seeds-cpu.json

Each seed holds out other images, trains another supernet and draws other random nets; the test images are always the
same. Winner and random nets keep the same budget and inherit their weights from the same supernet; each is evaluated
on the test images once, after the search, which sees the held-out images alone. The winner is then trained on its own,
which is what the run ships. A finished seed is not run again.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from nasformer.cli.main import find_command, make_parser
from nasformer.runs.options import RunCommand
from nasformer.runs.run import run_supernet
from nasformer.search.problem import MeanScore, ModelResult
from nasformer.utils.files import read_json, write_json
from record import benchmark_parser, save_record


def parse(*words: str) -> RunCommand:
    return make_parser(find_command("run")).parse(words).options


def run_seed(recipe: str, seed: int, folder: Path) -> dict[str, Any]:
    """The winner of one seed and the mean of its random nets, in percent of the images; seconds of the whole run."""
    done = folder / "benchmark.json"
    if done.exists():
        return read_json(done)
    command = parse("--config", recipe, "--seed", str(seed), "--out", str(folder))
    wall, cpu = time.perf_counter(), time.process_time()
    result = run_supernet(command)
    assert result is not None
    test = MeanScore.of(result.random, "test_accuracy")
    row: dict[str, Any] = {
        "seed": seed,
        "shipped": figures(result.shipped),
        "winner": {**figures(result.winner), "arch": result.winner.arch},
        "random": {
            "nets": test.count,
            "params": MeanScore.of(result.random, "params").mean,
            "test_accuracy": 100 * test.mean,
            "test_error": 100 * test.error,
        },
        "gain": 100 * (result.winner["test_accuracy"] - test.mean),
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "references": {model.name: figures(model) for model in result.references},
    }
    write_json(done, row)
    return row


def figures(model: ModelResult) -> dict[str, float]:
    """Its parameters, and its accuracies in percent."""
    accuracies = {name: 100 * value for name, value in model.scores.items() if name.endswith("_accuracy")}
    return {"params": model["params"], **accuracies}


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The mean gain over seeds, and its standard error: seeds differ in images held out, weights and nets drawn."""
    gains = [row["gain"] for row in rows]
    return {
        "shipped": fmean(row["shipped"]["test_accuracy"] for row in rows),
        "winner": fmean(row["winner"]["test_accuracy"] for row in rows),
        "random": fmean(row["random"]["test_accuracy"] for row in rows),
        "gain": fmean(gains),
        "standard_error": stdev(gains) / len(gains) ** 0.5,
        "seconds": fmean(row["seconds"] for row in rows),
    }


def print_rows(rows: list[dict[str, Any]], total: dict[str, float]) -> None:
    print("seed   winner: params   test %   random nets: params   test %, mean ± s.e.    gain   seconds")
    for row in rows:
        winner, random = row["winner"], row["random"]
        mean = f"{random['test_accuracy']:.2f} ± {random['test_error']:.2f}"
        nets = f"{random['nets']} of {random['params']:,.0f}"
        print(
            f"{row['seed']:4} {winner['params']:16,.0f} {winner['test_accuracy']:8.2f} {nets:>21} {mean:>22} "
            f"{row['gain']:+7.2f} {row['seconds']:9.0f}"
        )
    means = f"winner {total['winner']:.2f} % ({total['shipped']:.2f} % trained), random nets {total['random']:.2f} %"
    print(f"over {len(rows)} seeds: {means}, gain {total['gain']:+.2f} ± {total['standard_error']:.2f} points")


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs/demo-seeds"), help="the folder of the run folders")
    args = parser.parse_args()
    rows = [run_seed(args.recipe, seed, args.runs / f"seed-{seed}") for seed in args.seeds]
    total = summary(rows)
    print_rows(rows, total)
    command = parse("--config", args.recipe)
    budget, space = str(command.budget()), command.space
    settings = {
        "recipe": args.recipe,
        "seeds": args.seeds,
        "space": space,
        "budget": budget,
        "holdout": command.holdout,
    }
    save_record("demo_seeds", settings | {"weights": "inherited"}, {"seeds": rows, "all": total}, args.out, quiet=True)


if __name__ == "__main__":
    main()
