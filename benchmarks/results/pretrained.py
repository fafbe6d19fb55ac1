"""Blocks on pretrained nets: cut and trained, cut without training, and how fast they are."""

from __future__ import annotations

import statistics

from nasformer.utils.statistics import spearman
from records import Record, mean_and_std, percent, table, table_of, text_of

CUT = "pretrained_cut-h200-deit-flowers"


def accuracies(record: Record, job: str) -> list[float]:
    """Test accuracies of one kind of net, seed by seed; several of a seed as their mean."""
    found = []
    for run in record["results"]["runs"]:
        tests = [entry["test"] for name, entry in run["jobs"].items() if name.startswith(job) and "test" in entry]
        found += [statistics.fmean(tests)] if tests else []
    return found


def fine_tuned(record: Record) -> list[float]:
    return [run["full"]["test"] for run in record["results"]["runs"]]


def difference(record: Record, one: str, other: str) -> str:
    pairs = zip(accuracies(record, one), accuracies(record, other), strict=False)
    points = [100 * (first - second) for first, second in pairs]
    return f"{statistics.fmean(points):+.1f} ± {statistics.stdev(points):.1f}" if points else ""


@table_of(CUT)
def cut_table(record: Record) -> str:
    shares = record["settings"]["budgets"]
    tuned, full, none = fine_tuned(record), accuracies(record, "100 full"), [""] * len(shares)
    rows = [
        ["full net, fine-tuned", mean_and_std(tuned), *none],
        ["full net, then trained as the cut nets are", mean_and_std(full), *none],
    ]
    for kind, name in {"searched": "**searched**", "uniform": "cut uniformly", "random": "random archs"}.items():
        found = [accuracies(record, f"{share} {kind}") for share in shares]
        rows.append([name, "", *(mean_and_std(values) if values else "" for values in found)])
    for kind in ("uniform", "random"):
        cells = [difference(record, f"{share} searched", f"{share} {kind}") for share in shares]
        rows.append([f"searched - {kind}, paired over seeds", "", *cells])
    return table(["test accuracy, share of the MACs", "100 %", *(f"{share} %" for share in shares)], *rows)


@text_of(CUT)
def cut_ranking(record: Record) -> str:
    """How well inherited accuracies rank random archs by what they end with, seeds taken together by their means."""
    parts = []
    for share in (50, 35):
        inherited, tests = list[float](), list[float]()
        for run in record["results"]["runs"]:
            nets = [job for name, job in run["jobs"].items() if name.startswith(f"{share} random") and "test" in job]
            for values, name in ((inherited, "inherited"), (tests, "test")):
                mean = statistics.fmean(net[name] for net in nets)
                values += [net[name] - mean for net in nets]
        parts.append(f"{spearman(inherited, tests):+.2f} at {share} % of the MACs ({len(tests)} archs)")
    return " and ".join(parts)


@text_of(CUT)
def cut_in_short(record: Record) -> str:
    """For the README."""
    half, uniform = (mean_and_std(accuracies(record, f"50 {kind}")) for kind in ("searched", "uniform"))
    tuned, full = mean_and_std(fine_tuned(record)), mean_and_std(accuracies(record, "100 full"))
    return (
        f"DeiT-Ti at half of its\nmultiply-accumulates ends at {half} % test accuracy; fine-tuned whole it has "
        f"{tuned} %, and {full} % with the same last training. Cut uniformly it ends at {uniform} %"
    )


@text_of(CUT)
def cut_by_share(record: Record) -> str:
    """For the tutorial."""
    shares = [share for share in record["settings"]["budgets"] if share < 75]
    found = {share: statistics.fmean(accuracies(record, f"{share} searched")) for share in shares}
    loss = [100 * (found[s] - statistics.fmean(accuracies(record, f"{s} uniform"))) for s in shares]
    steps = ", ".join(f"{percent(value)} % at {share} %" for share, value in found.items())
    full = percent(statistics.fmean(accuracies(record, "100 full")))
    return (
        f"{full} % for the full net, {steps} of its\nmultiply-accumulates; uniform cuts of the same cost lose "
        f"{min(loss):.1f} to {max(loss):.1f} points more"
    )


@table_of("pretrained_curve-h200-deit", "pretrained_curve-h200-vit")
def curve_table(*records: Record) -> str:
    shares = records[0]["settings"]["budgets"]
    rows = []
    for record, net in zip(records, ("DeiT-Ti", "ViT-Ti"), strict=True):
        found = record["results"]["folds"][0]["rows"]
        for way in WAYS:
            cells = [found[f"{share} {way}"] for share in shares]
            shown = [percent(cell["accuracy"]) + own_share(cell, way) for cell in cells]
            rows.append([f"{net}: {WAYS[way]}", *shown])
    return table(["accuracy, share of the MACs", *(f"{share} %" for share in shares)], *rows)


WAYS = {
    "searched, sorted, compensated": "**searched, sorted, compensated** (`--no-training`)",
    "searched, unsorted, compensated": "searched, unsorted, compensated",
    "searched, sorted, bare": "searched, sorted, not compensated",
    "uniform, sorted, compensated": "uniform, sorted, compensated",
}


def own_share(cell: Record, way: str) -> str:
    """The share of the MACs that a uniform arch has: the next step up would break the budget."""
    return f" ({percent(cell['macs'], 0)} %)" if way.startswith("uniform") else ""


@text_of("pretrained_curve-h200-deit")
def curve_in_short(record: Record) -> str:
    """For the tutorial: what each part is worth at 70 % of the MACs."""
    rows = record["results"]["folds"][0]["rows"]
    ways = ("searched, sorted, compensated", "searched, unsorted, compensated", "searched, sorted, bare")
    whole, unsorted, bare = (percent(rows[f"70 {way}"]["accuracy"]) for way in ways)
    uniform = percent(rows["70 uniform, sorted, compensated"]["accuracy"])
    return (
        f"At 70 % of its MACs DeiT-Ti keeps {whole} % of ImageNet's images right\n"
        f"(one seed; {uniform} % cut uniformly, {unsorted} % unsorted, {bare} % not fitted)"
    )


@table_of("pretrained_latency-cpu", "pretrained_latency-h200")
def cut_latency_table(*records: Record) -> str:
    """How much faster random cuts are than the full net."""
    rows = []
    for record, machine in zip(records, ("CPU, one thread", "H200, compiled"), strict=True):
        found = {(row["batch"], row["budget"]): row["speedup"] for row in record["results"]["summary"]}
        for batch in record["settings"]["batches"]:
            times = [found.get((batch, budget)) for budget in (75, 58, 50, 35)]
            rows.append([machine, str(batch), *("–" if time is None else f"{time:.2f}" for time in times)])
    return table(["times as fast, share of the MACs", "batch", "75 %", "58 %", "50 %", "35 %"], *rows)


@text_of("pretrained_latency-cpu")
def cut_latency(record: Record) -> str:
    rows = {row["budget"]: row for row in record["results"]["summary"] if row["batch"] == 1}
    times = [f"{100 / rows[share]['speedup']:.0f} %" for share in (50, 35)]
    return f"with 50 % of its MACs takes {times[0]} of the time for one image, with 35 % of them {times[1]}"
