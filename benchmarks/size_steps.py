"""Does a score grow with the net? Every size gene of random archs goes up by one step, all else stays.

python benchmarks/size_steps.py --out size_steps.json --plot size_steps.png

A score for size should rise with nearly every step, follow the parameters among unlike nets of one topology, and change
little with the seed. A score for topology should neither rise nor fall: half of the steps up, and little change against
its spread over archs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from random import Random

import torch
from scipy.stats import spearmanr

import nasformer
from nasformer import Arch, Space
from nasformer.proxies.scoring import Scorer
from nasformer.space.mutation import Mutation, genes
from record import benchmark_parser, save_record

GENES = ("depth", "embed_dim", "expansion", "qkv_dim")
SIZES = Mutation(depth=1, width=1, block=1, role="size")
Changes = dict[str, list[float]]


def steps_up(space: Space, arch: Arch, rng: Random) -> Iterator[tuple[str, Arch]]:
    """Every arch with one size gene one step larger, and the name of that gene; a new block is a random one."""
    before = genes(space.root, arch, "size")
    for step in space.root.neighbours(arch, rng):
        after = genes(space.root, step, "size")
        raised = [path for path in before if path in after and after[path] > before[path]]
        if len(raised) == 1 and len(after) >= len(before):
            last = raised[0][-1]
            yield ("depth" if last == "blocks" else str(last)), step


def changes(
    space: Space, scorer: Scorer, arch: Arch, names: Sequence[str], steps: int, seed: int
) -> dict[str, Changes]:
    """Relative changes of each score, by kind of gene, over a few random steps of each kind."""
    rng = Random(f"steps {seed}")
    base = {name: score.mean for name, score in scorer.score(arch).items()}
    found: dict[str, Changes] = {name: {} for name in names}
    reachable = list(steps_up(space, arch, rng))
    for gene in GENES:
        of_gene = [step for kind, step in reachable if kind == gene]
        for step in rng.sample(of_gene, min(steps, len(of_gene))):
            for name, score in scorer.score(step).items():
                found[name].setdefault(gene, []).append(score.mean / base[name] - 1)
    return found


def siblings(space: Space, scorer: Scorer, arch: Arch, count: int, seed: int) -> dict[str, float]:
    """Spearman's correlation of each score with the parameters, among nets of one topology with redrawn sizes."""
    rng = Random(f"siblings {seed}")
    archs = [space.root.mutate(arch, rng, SIZES) for _ in range(count)]
    rows = [scorer.score(sibling) for sibling in archs]
    params = [space.cost(sibling).params for sibling in archs]
    return {name: float(spearmanr([row[name].mean for row in rows], params).statistic) for name in rows[0]}


def noise(space: Space, arch: Arch, names: Sequence[str], img_size: int, seeds: int = 3) -> dict[str, float]:
    """How much of itself a score changes with the seed: the standard deviation over the mean."""
    rows = [Scorer(space, names, batch_size=8, img_size=img_size, seed=seed).score(arch) for seed in range(seeds)]
    values = {name: [row[name].mean for row in rows] for name in names}
    return {name: statistics.stdev(some) / statistics.fmean(some) for name, some in values.items()}


def summary(found: Sequence[dict[str, Changes]], name: str) -> dict[str, float]:
    """The share of steps that raise the score, by gene and over all, and the median change."""
    pooled = {gene: [x for each in found for x in each[name].get(gene, [])] for gene in GENES}
    everything = [x for some in pooled.values() for x in some]
    risen = {gene: statistics.fmean(x > 0 for x in some) for gene, some in pooled.items() if some}
    return {**risen, "all": statistics.fmean(x > 0 for x in everything), "median": statistics.median(everything)}


def plot(found: Sequence[dict[str, Changes]], names: Sequence[str], path: str) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(names), figsize=(4.5 * len(names), 3.4), layout="constrained", squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        pooled = [[100 * x for each in found for x in each[name].get(gene, [])] for gene in GENES]
        axis.boxplot(pooled, tick_labels=GENES, whis=(5, 95), showfliers=False)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set(title=name, ylabel="change by one step up, %")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--space", default="esformer-s0")
    parser.add_argument("--proxy", default="logsynflow,entropic")
    parser.add_argument("--img-size", type=int, default=64, help="side of the images that scores see")
    parser.add_argument("--archs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=6, help="steps of each kind of gene, for each arch")
    parser.add_argument("--siblings", type=int, default=10, help="nets of redrawn sizes, for each arch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", help="draw the changes here as PNG")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    space, names = nasformer.get_space(args.space), args.proxy.split(",")
    scorer = Scorer(space, names, batch_size=8, img_size=args.img_size)
    found, ranks, noises = [], [], []
    for number in range(args.archs):
        arch = space.sample(300 + number)
        found.append(changes(space, scorer, arch, names, args.steps, number))
        ranks.append(siblings(space, scorer, arch, args.siblings, number))
        noises.append(noise(space, arch, names, args.img_size))
        print(f"{number + 1} of {args.archs} archs", flush=True)
    results = {name: summary(found, name) for name in names}
    for name, row in results.items():
        row["spearman_params"] = statistics.fmean(rank[name] for rank in ranks)
        row["seed"] = statistics.fmean(some[name] for some in noises)
        print(f"{name:12}" + "".join(f"  {label} {value:.3f}" for label, value in row.items()))
    if args.plot:
        plot(found, names, args.plot)
    save_record("size_steps", vars(args), {"summary": results, "changes": found, "spearman": ranks}, args.out)


if __name__ == "__main__":
    main()
