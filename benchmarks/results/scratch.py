"""Blocks on searches from scratch: the demo, AutoFormer, TrioNet and S3."""

from __future__ import annotations

import statistics

from records import Record, mean_and_std, millions, percent, table, table_of, text_of

# The demo on digits


@table_of("demo_seeds-cpu")
def demo_table(record: Record) -> str:
    rows = record["results"]["seeds"]
    figures = {
        "winner, trained on its own (what the run ships)": [row["shipped"]["test_accuracy"] for row in rows],
        "winner, inherited weights": [row["winner"]["test_accuracy"] for row in rows],
        "mean of ten random nets of its size, inherited": [row["random"]["test_accuracy"] for row in rows],
    }
    body = [[name, plain_spread(values)] for name, values in figures.items()]
    gains = [row["gain"] for row in rows]
    ends = f"({min(gains):+.1f} to {max(gains):+.1f})"
    body.append(["winner - random nets, inherited, paired", f"+{plain_spread(gains)} {ends}"])
    return table(["test accuracy, 360 images", "five seeds"], *body)


def plain_spread(values: list[float]) -> str:
    """Mean and standard deviation of what is in percent already."""
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"


@text_of("demo_seeds-cpu")
def demo_accuracy(record: Record) -> str:
    return f"{plain_spread([row['shipped']['test_accuracy'] for row in record['results']['seeds']])} %"


@table_of("demo_seeds-cpu")
def demo_run(record: Record) -> str:
    """What the first seed's run prints in the end."""
    row = record["results"]["seeds"][0]
    found = row["references"]
    nets = {"winner, finetuned": row["shipped"], "winner (inherited)": row["winner"]}
    nets |= {f"{name} (inherited)": found[name] for name in ("smallest", "largest", "best of 30 random")}
    rows = [
        [name, f"{net['params'] / 1e3:.1f}K", *(f"{net[f'{part}_accuracy']:.2f}%" for part in ("holdout", "test"))]
        for name, net in nets.items()
    ]
    random = row["random"]
    mean = statistics.fmean(net["holdout_accuracy"] for name, net in found.items() if name.startswith("random"))
    test = f"{random['test_accuracy']:.2f}% ± {random['test_error']:.2f}%"
    rows.insert(2, ["mean of 10 random (inherited)", f"{random['params'] / 1e3:.1f}K", f"{mean:.2f}%", test])
    return table(["", "parameters", "held-out", "test"], *rows)


# AutoFormer


def trained(record: Record, beginning: str) -> list[list[float]]:
    """Accuracies of the nets whose names begin so, each seed by seed."""
    runs = record["results"]["runs"]
    return [[run["accuracy"] for run in runs[name]] for name in runs if name.startswith(beginning) and runs[name]]


def in_one(nets: list[list[float]]) -> str:
    """One net with its spread over seeds; of several nets the range."""
    if len(nets) == 1:
        return mean_and_std(nets[0])
    means = [statistics.fmean(net) for net in nets]
    return f"{percent(min(means))} to {percent(max(means))} ({len(nets)} nets)"


@table_of("same_recipe-h200-cifar100", "same_recipe-h200-flowers")
def autoformer_table(*records: Record) -> str:
    names = {"winner": "winner", "random": "random archs of equal size", "deit": "timm's DeiT-Ti, same patches"}
    rows = [
        [f"{name}, from scratch", *(in_one(trained(record, key)) for record in records)] for key, name in names.items()
    ]
    rows[1][1:] = [cell if "nets)" in cell else f"{cell} (1 net)" for cell in rows[1][1:]]
    inherited = [percent(record["results"]["models"]["winner"]["inherited"]) for record in records]
    return table(["test accuracy", "CIFAR-100", "Flowers-102"], ["winner, inherited", *inherited], *rows)


@text_of("same_recipe-h200-cifar100")
def autoformer_agreement(record: Record) -> str:
    found = record["results"]["agreement"]
    ranges = [f"{percent(min(found[key]))} to {percent(max(found[key]))} %" for key in ("inherited", "own")]
    return (
        f"{len(found['own'])} random archs of equal size on CIFAR-100\ninherit {ranges[0]} and reach {ranges[1]} "
        f"on their own; Kendall's tau {found['kendall']:.2f}"
    )


# TrioNet


@table_of("trionet_ablation-h200")
def trionet_parts(record: Record) -> str:
    names = {
        "full": "all three",
        "without-hs": "without Hierarchical Sampling",
        "without-mhs": "without Multi-Head Sharing",
        "without-sandwich": "without the sandwich rule",
    }
    rows = []
    for key, name in names.items():
        last = record["results"][key][-1]
        random = [accuracy for net, accuracy in last["subnets"].items() if net.startswith("random")]
        shares = [last["watch"][operator] for operator in ("conv", "local", "axial")]
        rows.append([name, *map(percent, [*shares, statistics.fmean(random)])])
    return table(
        ["held-out accuracy, inherited", "largest conv", "largest local", "largest axial", "ten random nets"], *rows
    )


@table_of("same_recipe-h200-trionet", "same_recipe-cpu-trionet")
def trionet_trained(gpu: Record, cpu: Record) -> str:
    rows = []
    for name, net in gpu["results"]["models"].items():
        own = [in_one(trained(record, name)) if trained(record, name) else "–" for record in (gpu, cpu)]
        rows.append([name, millions(net["macs"]), millions(net["params"]), percent(net["inherited"]), *own])
    head = ["net", "MACs", "parameters", "inherited", "from scratch", "from scratch on a tenth of the images (CPU)"]
    return table(head, *sorted(rows, key=lambda row: (row[4] != "–", row[4]), reverse=True))


# S3


@table_of("s3_evolution-h200", "same_recipe-h200-s3", "same_recipe-cpu-s3")
def s3_table(evolution: Record, gpu: Record, cpu: Record) -> str:
    steps, found = evolution["results"]["evolution"], evolution["results"]
    carried = [f"{step['error']['et']:.1f}" for step in steps]
    fresh = [steps[0], found["from scratch"]["B"], found["from scratch"]["C"]]
    parts = [f"{step['error']['expected']:.1f} / {step['error']['top']:.1f}" for step in fresh]
    winners = [found["searched"].get(space) for space in "ABC"]
    searched = [percent(net["test_accuracy"]) if net else "" for net in winners]
    rows = [
        ["E-T error, while the space evolves (weights carried over)", *carried],
        ["**E-T error, each supernet 12 epochs from scratch**", *(f"{step['error']['et']:.1f}" for step in fresh)],
        ["its two parts, expected / top", *parts],
        ["test accuracy of the searched net, inherited", *searched],
    ]
    for record, name in ((gpu, "on all images (H200)"), (cpu, "on a fifth of the images (CPU, one seed)")):
        own = [trained(record, f"searched in {space}") for space in "ABC"]
        rows.append([f"the same from scratch, {name}", *(in_one(nets) if nets else "" for nets in own)])
    return table(["", "A", "B", "C"], *rows)
