"""Blocks on training-free scores: rankings of trained nets, and the Entropic Score."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from records import Record, millions, percent, short, table, table_of

GOLDEN = "python benchmarks/golden_tables.py TABLE.json ... --proxy dss,snip,... --out"
COUNTS = ("params", "macs", "depth", "embed_dim", "base_dim", "num_heads", "mlp_ratio")


def ranking(record: Record, title: str) -> str:
    """Kendall's tau of every score with every column, and the one within size bands; the best in bands first."""
    taus = record["results"].get(title, {}).get("taus")  # written when all proxies of a table are scored
    return by_column(taus) if taus else "*Not finished: the record has no scores of this table yet.*"


def by_column(taus: Record) -> str:
    names = sorted(next(iter(taus.values())), key=lambda name: mean_within(taus, name), reverse=True)
    rows = [[named(name), *(tau(column[name]) for column in taus.values())] for name in names]
    return table(["score", *taus], *rows)


def mean_within(taus: Record, name: str) -> float:
    values = [column[name]["within_bands"] for column in taus.values()]
    return statistics.fmean(value if value is not None else -1.0 for value in values)


def named(score: str) -> str:
    return f"*{score}*" if score in COUNTS else f"`{score}`"


def tau(cell: Record) -> str:
    """
    >>> tau({"kendall": 0.5, "interval": [0.3, 0.6], "within_bands": -0.1})
    '.50 [.30, .60]; -.10'
    """
    if cell["kendall"] is None:
        return "–"
    return f"{short(cell['kendall'])} [{', '.join(map(short, cell['interval']))}]; {short(cell['within_bands'])}"


@table_of("golden_tables-cpu", command=f"{GOLDEN} benchmarks/records/golden_tables-cpu.json")
def ranks_autoformer(record: Record) -> str:
    return ranking(record, "ground_truth_autoformer")


@table_of("golden_tables-cpu", command=f"{GOLDEN} benchmarks/records/golden_tables-cpu.json")
def ranks_pit(record: Record) -> str:
    return ranking(record, "ground_truth_pit")


@table_of("golden_tables-inherited-cpu", command=f"{GOLDEN} benchmarks/records/golden_tables-inherited-cpu.json")
def ranks_inherited(record: Record) -> str:
    return by_supernet(record, "inherited_autoformer_")


def by_supernet(record: Record, beginning: str) -> str:
    """The same with a table for each column: those of one accuracy each."""
    taus = {
        title.removeprefix(beginning): found
        for title, tables in record["results"].items()
        for found in tables.get("taus", {}).values()
    }
    return by_column(taus) if taus else "*Not finished: the record has no scores of this table yet.*"


@table_of("golden_tables-unseen-cpu", command=f"{GOLDEN} golden_tables-unseen-cpu.json --rows odd")
def ranks_unseen(record: Record) -> str:
    rows = []
    for title, found in record["results"].items():
        for column, taus in found["taus"].items():
            if title.startswith("inherited") or column in ("c100_kd", "flower_kd"):
                mine, counts = taus["stream-fit"], {name: taus[name] for name in COUNTS if name in taus}
                all_rows, in_bands = tau(mine).split("; ")
                over = [best_count(counts, key) for key in ("kendall", "within_bands")]
                rows.append([f"{title}, {column}", all_rows, over[0], in_bands, over[1]])
    return table(
        ["rows not fitted on", "`stream-fit`", "best count", "`stream-fit` in bands", "best count in bands"], *rows
    )


def best_count(counts: dict[str, Record], key: str) -> str:
    name = max(counts, key=lambda name: counts[name][key] if counts[name][key] is not None else -1.0)
    return f"{short(counts[name][key])} ({name})"


# Entropic Score

READINGS = {
    "histogram": "histogram (`entropic`)",
    "binary": "`entropic-binary`",
    "gap": "`entropic-gap`",
    "sigmoid": "`entropic-sigmoid`",
    "softmax": "`entropic-softmax`",
    "mass": "`entropic-mass`",
}
OTHERS = {"macs": "*MACs*", "IBN share": "*share of inverted bottlenecks*", "logsynflow": "`logsynflow`"}
TRAINED = tuple(f"readings_of_trained-cpu-{count}" for count in ("nine", "six", "five"))
NETS = tuple(f"same_recipe-h200{lot}" for lot in ("", "-binary", "-seeing", "-default"))


@table_of("entropic_readings-cpu", *TRAINED, *NETS)
def entropic_readings(record: Record, *others: Record) -> str:
    trained = others[: len(TRAINED)]
    spreads = record["results"]["spreads"]
    rows = []
    for key, name in READINGS.items():
        found = [f"{spreads[key][part]:.2f}" for part in ("width", "depth", "uniform", "noise", "kinds")]
        rows.append([name, *found, *kendall(trained, f"{key}, fan-in")])
    size = [f"{spreads['params'][part]:.2f}" for part in ("width", "depth", "uniform", "noise", "kinds")]
    rows.append(["*parameters*", *size, *kendall(trained, "params")])
    for key, name in OTHERS.items():
        rows.append([name, *[""] * 5, *kendall(trained, key)])
    head = [
        "reading",
        "width",
        "depth",
        "depth, one kind of block",
        "seed",
        "IBN share",
        "nine nets",
        "six nets",
        "five nets",
    ]
    return table(head, *rows)


def kendall(records: Sequence[Record], key: str) -> list[str]:
    return [f"{record['results']['kendall'][key]:+.2f}" for record in records]


@table_of("size_steps-cpu")
def size_steps(record: Record) -> str:
    kinds = ("depth", "embed_dim", "expansion", "qkv_dim", "all")
    rows = []
    for name, found in record["results"]["summary"].items():
        shares = [f"{percent(found[kind], 0)} %" for kind in kinds]
        changes = [f"{percent(found[key], 2)} %" for key in ("median", "seed")]
        rows.append([f"`{name}`", *shares, f"{found['spearman_params']:.2f}", *changes])
    head = ["steps that raise the score", "depth", "embedding", "expansion", "q-k-v", "all"]
    return table([*head, "Spearman with parameters", "median change by a step", "change by another seed"], *rows)


@table_of("esformer_nets-cpu")
def cyclic_winners(record: Record) -> str:
    found = {name: net for name, net in record["results"]["winners"].items() if "alone" not in name}
    rows = {
        "candidates": [f"{net['candidates']:,}" for net in found.values()],
        "parameters": [millions(net["params"]) for net in found.values()],
        "MACs (256 px)": [f"{net['macs'] / 1e6:,.0f} M" for net in found.values()],
        "`entropic`": [f"{net['entropic']:.3f}" for net in found.values()],
        "`logsynflow`": [f"{net['logsynflow'] / 1e3:,.0f} K" for net in found.values()],
    }
    names = [f"{name[:2]}, seed {name[3:]}" for name in found]
    return table(["winner", *names], *([name, *cells] for name, cells in rows.items()))


@table_of("esformer_nets-cpu")
def paper_patterns(record: Record) -> str:
    rows = []
    for found in record["results"]["patterns"]:
        claim, _, rest = found["sentence"].partition(": ")
        numbers = rest.partition("(")[2].partition(")")[0].partition("; random archs: ")
        chance = f"{percent(found['chance'], 0)} %" if found["verdict"] == "appears" else "–"
        rows.append([claim, found["verdict"], numbers[0] or "–", numbers[2] or "–", chance])
    return table(
        ["pattern", "in the three winners of s0", "winners", "300 random archs", "random groups of three as strong"],
        *rows,
    )


@table_of("same_recipe-h200-seeing", "esformer_nets-cpu")
def esformer_trained(record: Record, nets: Record) -> str:
    summary, costs = record["results"]["summary"], nets["results"]["costs"]
    rows = []
    for name, found in sorted(summary.items(), key=lambda item: -item[1]["accuracy"]):
        macs = f"{costs[name]['macs'] / 1e6:,.0f} M" if name in costs else "–"
        rows.append([name, millions(found["params"]), macs, percent(found["accuracy"])])
    return table(["net", "parameters (10 classes)", "MACs (256 px)", "accuracy"], *rows)
