"""Which reading of the Entropic Score sees topology and not size? Spreads of each, and of LogSynflow, on ESFormer.

python benchmarks/entropic_readings.py --out entropic.json --plot entropic.png

Around random archs, one thing at a time is redrawn: the widths (embeddings, expansions, q-k-v), the depths, the
topology (kinds of block and of feed-forward half, kernels), the seed. Spreads are standard deviations around the mean
of an arch's variants, over all archs, less what the seed explains. A score for topology should have a small spread by
width and by depth, and a small one by seed, each in units of the spread by topology; and it should see more than the
kinds of block, which one can count. A score for size should follow the parameters when only sizes change.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from scipy.stats import spearmanr

import nasformer
from nasformer import Arch, Space
from nasformer.proxies.entropy import READINGS, entropies
from nasformer.proxies.parts import Draw, kaiming_fan_in, kaiming_fan_out, noise_probe
from nasformer.proxies.scoring import image_shape, score_model
from nasformer.space.mutation import Mutation
from record import benchmark_parser, save_record

REDRAWN = {
    "width": Mutation(depth=0, width=1, block=1, role="size"),
    "depth": Mutation(depth=1, width=0, block=0, role="size"),
    "uniform": Mutation(depth=1, width=0, block=0, role="size"),  # depth again, of nets with equal blocks
    "topology": Mutation(depth=0, width=1, block=1, role="topology"),
}
INITS: dict[str, Draw] = {"fan-in": kaiming_fan_in, "fan-out": kaiming_fan_out}
Row = dict[str, float]


@dataclass
class Family:
    """An arch, its scores with several seeds, and its variants with theirs."""

    base: Arch
    seeds: list[Row] = field(default_factory=list)
    archs: dict[str, list[Arch]] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)


class Judge:
    """All scores of an arch; the readings share their forward passes."""

    def __init__(self, space: Space, batch: int, draw: Draw) -> None:
        self.space, self.batch, self.draw = space, batch, draw

    def __call__(self, arch: Arch, seed: int, controls: Sequence[str]) -> Row:
        model = self.space.build(arch).eval()  # with any weights: every score here draws its own
        probe = noise_probe(*image_shape(self.space), self.batch, seed)
        others = {name: score.mean for name, score in score_model(model, controls, probe).items()}
        return entropies(model, probe, draw=self.draw) | others


def variants(space: Space, base: Arch, what: str, count: int) -> list[Arch]:
    rng = Random(f"{what} {base.to_json()}")
    start = uniform(base) if what == "uniform" else base
    return [space.root.mutate(start, rng, REDRAWN[what]) for _ in range(count)]


def uniform(arch: Arch) -> Arch:
    """The same with one kind of block everywhere, the first: then depth does not change the mixture of blocks."""
    block = arch.stage1.blocks[0]
    return Arch(**{name: {**stage, "blocks": [block] * len(stage.blocks)} for name, stage in arch.items()})


def measure(judge: Judge, number: int, count: int, seeds: int, controls: Sequence[str]) -> Family:
    family = Family(judge.space.sample(number))
    family.seeds = [judge(family.base, seed, controls) for seed in range(seeds)]
    for what in REDRAWN:
        family.archs[what] = variants(judge.space, family.base, what, count)
        family.rows[what] = [judge(arch, number, controls) for arch in family.archs[what]]
    return family


def spread(groups: Iterable[Sequence[float]]) -> float:
    """The standard deviation within groups."""
    return statistics.fmean(statistics.variance(group) for group in groups) ** 0.5


def disagreement(scores: Sequence[Sequence[float]]) -> float:
    """What the seed changes in the comparison of archs: the residual spread of scores[arch][seed].

    A seed that moves all archs alike (they see the same images) does no harm.
    """
    seeds = [statistics.fmean(column) for column in zip(*scores, strict=True)]
    alike = [[score - seed for score, seed in zip(row, seeds, strict=True)] for row in scores]
    return spread(alike) * (len(scores) / (len(scores) - 1)) ** 0.5


def summary(families: Sequence[Family], name: str) -> Row:
    """Spreads in units of the spread by topology, and how far size explains the score."""
    noise = disagreement([[row[name] for row in family.seeds] for family in families])

    def total(what: str) -> float:
        return spread([row[name] for row in family.rows[what]] for family in families)

    topology = total("topology")  # with its noise: a score that is noise has the noise 1
    beyond_noise = {what: max(total(what) ** 2 - noise**2, 0.0) ** 0.5 for what in ("width", "depth", "uniform")}
    ratios = {what: size / topology for what, size in beyond_noise.items()}
    mean = statistics.fmean(row[name] for family in families for row in family.rows["topology"])
    by_size = {f"params_{what}": by_params(families, name, what) for what in ("width", "depth", "topology")}
    explained = {"kinds": counted(families, name)}
    return {"mean": mean, "topology": topology, **ratios, "noise": noise / topology, **explained, **by_size}


def by_params(families: Sequence[Family], name: str, what: str) -> float:
    """Spearman's correlation with the parameters among the variants of an arch, on average over archs."""
    columns = [([row[name] for row in f.rows[what]], [row["params"] for row in f.rows[what]]) for f in families]
    return statistics.fmean(float(spearmanr(*column).statistic) for column in columns)


def preferences(families: Sequence[Family], name: str) -> Row:
    """What of the topology a score likes: correlations with traits of each stage, among the variants of an arch.

    Those with kernels and encoders are partial, given the share of inverted bottlenecks, which dominates.
    """
    scores = centred([row[name] for row in family.rows["topology"]] for family in families)
    shares = centred([share_of_ibn(arch) for arch in family.archs["topology"]] for family in families)
    found = {}
    for trait, value in TRAITS.items():
        for stage in families[0].base:
            values = centred([value(arch[stage]) for arch in family.archs["topology"]] for family in families)
            if any(values):
                pair = (scores, values) if trait == "ibn" else (without(scores, shares), without(values, shares))
                found[f"{trait} {stage[-1]}"] = statistics.correlation(*pair)
    return found


def without(values: Sequence[float], cause: Sequence[float]) -> list[float]:
    """What of the values a linear function of the cause does not explain."""
    slope = statistics.linear_regression(cause, values).slope
    return [value - slope * x for value, x in zip(values, cause, strict=True)]


def centred(groups: Iterable[Sequence[float]]) -> list[float]:
    """All values, less the mean of their group."""
    return [value - statistics.fmean(group) for group in groups for value in group]


def counted(families: Sequence[Family], name: str) -> float:
    """How much of the variance by topology the mere share of inverted bottlenecks explains: R squared."""
    scores = centred([row[name] for row in family.rows["topology"]] for family in families)
    shares = centred([share_of_ibn(arch) for arch in family.archs["topology"]] for family in families)
    return statistics.correlation(scores, shares) ** 2


def share_of_ibn(arch: Arch) -> float:
    """Of all activation layers; an inverted bottleneck has two, a ConvNeXt block one."""
    layers = [2 if kind == "ibn" else 1 for stage in arch.values() for kind, _ in convolutions(stage)]
    return sum(count for count in layers if count == 2) / sum(layers)


def convolutions(stage: Arch) -> list[tuple[str, Arch]]:
    """Kind and genes of each block's convolutional part: the block itself, or the feed-forward half of an encoder."""
    parts = [block.encoder.ffn if "encoder" in block else block for block in stage.blocks]
    return [next(iter(part.items())) for part in parts]


TRAITS: dict[str, Callable[[Arch], float]] = {
    "ibn": lambda stage: statistics.fmean(kind == "ibn" for kind, _ in convolutions(stage)),
    "encoder": lambda stage: statistics.fmean("encoder" in block for block in stage.blocks),
    "kernel": lambda stage: statistics.fmean(genes.kernel for _, genes in convolutions(stage)),
}


def print_table(rows: dict[str, Row]) -> None:
    names = list(next(iter(rows.values())))
    width = [max(9, len(name)) for name in names]
    print(" " * 14 + "".join(f"  {name:>{size}}" for name, size in zip(names, width, strict=True)))
    for label, row in rows.items():
        print(f"{label:14}" + "".join(f"  {row[name]:{size}.3g}" for name, size in zip(names, width, strict=True)))


def plot(rows: dict[str, Row], path: str) -> None:
    import matplotlib.pyplot as plt

    figure, (top, bottom) = plt.subplots(2, figsize=(9, 6), sharex=True, layout="constrained")
    for place, (what, label) in enumerate({"width": "width", "depth": "depth", "noise": "seed"}.items()):
        places = [index + 0.27 * (place - 1) for index in range(len(rows))]
        top.bar(places, [row[what] for row in rows.values()], 0.25, label=label)
    top.axhline(1, color="black", linewidth=0.8)
    top.set(ylabel="spread / spread by topology", ylim=(0, 1.2))
    top.legend(title="spread by", ncols=3)
    bottom.bar(range(len(rows)), [1 - row["kinds"] for row in rows.values()], 0.5, color="grey")
    bottom.set(ylabel="share of the variance by topology\nbeyond the count of kinds of block", ylim=(0, 1))
    bottom.set_xticks(range(len(rows)), list(rows))
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--space", default="esformer-s0")
    parser.add_argument("--img-size", type=int, default=128)
    parser.add_argument("--archs", type=int, default=8, help="random archs to vary")
    parser.add_argument("--first", type=int, default=0, help="seed of the first arch; the others follow")
    parser.add_argument("--logsynflow", type=int, default=2, help="how many of them LogSynflow sees: it is slow")
    parser.add_argument("--variants", type=int, default=8, help="variants of each, for width, depth and topology")
    parser.add_argument("--seeds", type=int, default=4, help="seeds for the noise")
    parser.add_argument("--batch", type=int, default=8, help="images, 8 at most")
    parser.add_argument("--init", choices=INITS, default="fan-in", help="of the readings; LogSynflow has its own")
    parser.add_argument("--plot", help="draw the spreads here as PNG")
    args = parser.parse_args()
    judge = Judge(nasformer.get_space(args.space, img_size=args.img_size), args.batch, INITS[args.init])
    families = []
    for number in range(args.archs):
        controls = ["params", "logsynflow"] if number < args.logsynflow else ["params"]
        families.append(measure(judge, args.first + number, args.variants, args.seeds, controls))
        print(f"{number + 1} of {args.archs} archs", flush=True)
    judged = dict.fromkeys((*READINGS, "params"), families) | {"logsynflow": families[: args.logsynflow]}
    spreads = {name: summary(some, name) for name, some in judged.items() if some}
    liked = {name: preferences(some, name) for name, some in judged.items() if some}
    print_table(spreads)
    print_table(liked)
    if args.plot:
        plot(spreads, args.plot)
    rows = [{"arch": f.base.to_dict(), "seeds": f.seeds, **f.rows} for f in families]
    save_record("entropic_readings", vars(args), {"spreads": spreads, "preferences": liked, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
