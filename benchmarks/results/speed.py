"""Blocks on speed: supernets, costs, DSS, local attention, latency, racing, searches of any length, workers."""

from __future__ import annotations

from records import Record, percent, table, table_of, text_of


def a_second(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def speed_rows(record: Record) -> list[list[str]]:
    found = record["results"]
    names = {
        "supernet": "**supernet, a random arch each step**",
        "extracted": "extracted model of mean cost",
        "timm vit_tiny": "timm's `vit_tiny_patch16_224` (smaller, no relative positions)",
    }
    shown = {key: name for key, name in names.items() if key in found}
    return [[name, a_second(found[key]["train"]), a_second(found[key]["eval"])] for key, name in shown.items()]


@table_of("supernet_speed-h200", "supernet_speed-h200-32px")
def speed_h200(*records: Record) -> str:
    rows = []
    for record, size in zip(records, ("224 px, batch 512", "32 px, patches of 4, batch 1,024"), strict=True):
        net = record["results"]["supernet"]
        seconds = [f"{net[key]:.0f} s" for key in ("first_step_seconds", "warm_up_seconds")]
        facts = [[f"{net['train_gib']:.1f} GiB", *seconds], ["", "", ""]]
        rows += [[size, *row, *fact] for row, fact in zip(speed_rows(record), facts, strict=True)]
    head = [
        "images",
        "net",
        "training, img/s",
        "evaluation, img/s",
        "memory",
        "until the first compiled step",
        "until all is compiled",
    ]
    return table(head, *rows)


@table_of("cpu_precision-cpu")
def cpu_precision(record: Record) -> str:
    """How many times as fast bf16 is as fp32."""
    rows = [
        [name, *(f"{row[kind]:.2f}" for kind in ("training", "evaluation"))] for name, row in record["results"].items()
    ]
    return table(["times as fast in bf16", "training", "evaluation"], *rows)


@text_of("cpu_precision-cpu")
def cpu_precision_in_short(record: Record) -> str:
    row = record["results"]["ViT-Ti, 224 px"]
    times = f"{row['training']:.1f} times and is evaluated {row['evaluation']:.1f} times as fast"
    return f"ViT-Ti at 224 px then trains {times}"


@table_of("feed_speed-h200")
def feed_table(record: Record) -> str:
    found = record["results"]
    names = {
        "step": "the step alone, on one batch",
        "memory": "from memory, augmented on the GPU",
        "files": f"JPEG files of {found['packing']['bytes an image'] / 1000:.0f} KB",
        "shards": "shards of 256 px (`nasformer pack`)",
    }
    rows = [
        [name, a_second(row["read"]) if "read" in row else "", a_second(row["train"]), share_of_step(row)]
        for key, name in names.items()
        for row in [found[key]]
    ]
    return table(["images from", "read and augmented, img/s", "training, img/s", "share of the step alone"], *rows)


def share_of_step(row: dict[str, float]) -> str:
    return f"{percent(row['share of the step alone'], 0)} %"


@table_of("supernet_speed-cpu")
def speed_cpu(record: Record) -> str:
    return table(["net", "training, img/s", "evaluation, img/s"], *speed_rows(record))


@text_of("supernet_speed-cpu")
def speed_cpu_ratio(record: Record) -> str:
    ratio = record["results"]["same archs in turns"]
    times = [f"{ratio[key]:.2f}" for key in ("train_time_over_extracted", "lowest", "highest")]
    return f"{times[0]} times that of the extracted model ({times[1]} to {times[2]})"


@text_of("supernet_speed-h200", "dss_speed-h200")
def speed_in_short(speed: Record, dss: Record) -> str:
    """For the README."""
    net, each = speed["results"]["supernet"], dss["results"]
    return (
        f"training {a_second(net['train'])} img/s in {net['train_gib']:.1f} GiB,\n  evaluation with inherited weights "
        f"{a_second(net['eval'])} img/s. DSS: {each['milliseconds_per_candidate']:.1f} ms a candidate "
        f"({each['literal_milliseconds_per_candidate']:.0f} by the\n  formula taken literally)"
    )


@text_of("supernet_speed-h200")
def evaluation_speed(record: Record) -> str:
    return a_second(record["results"]["supernet"]["eval"])


@text_of("supernet_speed-h200")
def training_speed(record: Record) -> str:
    return a_second(record["results"]["supernet"]["train"])


@text_of("dss_speed-h200")
def dss_each(record: Record) -> str:
    return f"{record['results']['milliseconds_per_candidate']:.1f} ms each on an H200"


@text_of("cost_speed-cpu")
def costs_a_second(record: Record) -> str:
    return f"{round(record['results']['closed_form_per_second'], -3):,.0f}"


@table_of("dss_speed-h200", "dss_speed-cpu")
def dss_table(*records: Record) -> str:
    rows = []
    for record, name in zip(records, ("H200", "CPU, two threads"), strict=True):
        found = record["results"]
        times = [f"{found[key]:.3g} ms" for key in ("milliseconds_per_candidate", "literal_milliseconds_per_candidate")]
        errors = [f"{found[key]:.1e}" for key in ("largest_relative_error", "literal_largest_relative_error")]
        rows.append([name, *times, f"{found['speedup']:.3g}", *errors])
    head = ["AutoFormer-T at 224 px", "time per net", "by the formula as written", "times faster"]
    head += ["largest relative error", "error of the formula as written"]
    return table(head, *rows)


# Local attention


@table_of("local_attention-h200", "local_attention-cpu")
def local_attention(gpu: Record, cpu: Record) -> str:
    setups = [(gpu, "H200, bf16", "bf16 eager"), (gpu, "H200, fp32", "fp32 eager"), (cpu, "CPU, fp32", "fp32 eager")]
    setups.insert(2, (gpu, "H200, bf16, compiled", "bf16 compiled"))
    sizes = ("56x56", "28x28", "16x16", "8x8")
    rows = [[name, *(cell(record, f"{size} {way}") for size in sizes)] for record, name, way in setups]
    return table(["times faster, times leaner", *(size.replace("x", " x ") for size in sizes)], *rows)


def cell(record: Record, key: str) -> str:
    """How much faster and leaner the fastest size of tiles is, forward and backward together."""
    ways = record["results"].get(key, {"ways": {}})["ways"]
    ours = [way for name, way in ways.items() if name.startswith(("local_attention", "tiles", "whole map"))]
    if not ours:
        return ""
    best = min(ours, key=lambda way: way["both_ms"])
    return f"{best['both_times_faster']:.2g} x, {best['both_times_leaner']:.2g} x"


# Latency


@table_of("profile-cpu-autoformer-tiny", "profile-h200-autoformer-tiny", "profile-cpu-esformer-s0")
def latency_table(*records: Record) -> str:
    rows = []
    for record in records:
        found = record["results"]
        times = f"{found['fastest_ms']:.0f} – {found['slowest_ms']:.0f} ms"
        errors = [f"{percent(found[key])} %" for key in ("median_error", "p90_error")]
        where = "H200" if record["hardware"]["gpu"] else "CPU"
        named = f"`{record['settings']['space']}`, {where}"
        rows.append([named, times, *errors, f"{percent(found['from_table'], 0)} %"])
    return table(
        [
            "30 nets not in the profile",
            "measured latency",
            "median error",
            "90th percentile",
            "layers found in the profile",
        ],
        *rows,
    )


# Racing


@table_of("racing-cpu-digits", "racing-cpu-imagenette")
def racing_table(*records: Record) -> str:
    rows = []
    for record, data in zip(records, ("digits", "Imagenette"), strict=True):
        (searched,) = record["results"].values()
        candidates = record["settings"]["population"] * record["settings"]["generations"]
        about = [data, f"{searched['images']:,}", f"{candidates:,}"]
        for name in record["settings"]["racing"]:
            race = searched[name]
            same, share = f"{race['same winner']} of {race['seeds']}", f"{percent(race['share of images'], 0)} %"
            rows.append([*about, f"`{name}`", same, share, f"{race['points against full']:+.2f}"])
    return table(
        [
            "data",
            "held-out images",
            "candidates",
            "`--search.racing`",
            "same winner",
            "images judged",
            "winner's points over full evaluation",
        ],
        *rows,
    )


# Searches of any length


@table_of("report_growth-cpu", "search_growth-cpu")
def growth_table(report: Record, search: Record) -> str:
    steps = search["results"]["growth"]
    rows = []
    for row in (row for row in report["results"]["growth"] if row["candidates"] >= 10**5):
        times = [found["ms"] for found in steps if found["candidates"] == row["candidates"]]
        own = [f"{row[key]:.1f} s" for key in ("resume_seconds", "report_seconds")]
        sizes = [f"{row['peak_mib']:.0f} MiB", f"{row['page_mb']:.1f} MB"]
        ask = f"{min(times):.2f} – {max(times):.2f} ms"
        rows.append([f"`{row['space']}`", f"{row['candidates']:,}", ask, *own, *sizes])
    head = [
        "space",
        "candidates",
        "search time per candidate",
        "journal read again",
        "report written",
        "peak memory",
        "report size",
    ]
    return table(head, *rows)


@table_of("files_growth-cpu")
def files_table(record: Record) -> str:
    rows = [
        [f"{row['files']:,}", f"{row['names']:.1f} MiB", f"{row['seconds']:.1f} s", f"{row['kept']:.0f} MiB"]
        for row in record["results"]["growth"]
    ]
    return table(["files", "memory of the names", "time to open", "memory added"], *rows)


# Workers


@table_of("ray_overhead-cpu")
def overhead_table(record: Record) -> str:
    found = record["results"]["overhead"]
    shares = [f"{percent(task['overhead'])} %" for task in found.values()]
    return table(["tasks on two workers", *found], ["overhead", *shares])


@text_of("ray_overhead-cpu-proxy")
def two_workers(record: Record) -> str:
    found = record["results"]["proxy"]
    one, two = (found[name]["best"] for name in ("one", "two"))
    alone = min(found["in-process"]["seconds"])
    return (
        f"**{found['speedup']:.2f} times** as fast as one\n({one:.1f} and {two:.1f} s for the same batch, "
        f"best of three; in one process without Ray {alone:.1f} s)"
    )


@table_of("ray_overhead-h200", "ray_overhead-h200-without-mps")
def sharing_table(*records: Record) -> str:
    rows = []
    for record, name in zip(records, ("with MPS", "without"), strict=True):
        found = record["results"]["sharing"]
        seconds = [found["in-process"], found["1 workers"]["best"], found["4 workers"]["best"]]
        rows.append([name, *(f"{value:.1f} s" for value in seconds), f"{found['speedup']:.1f}"])
    return table(["48 candidates", "no Ray", "one worker", "four workers", "four over one"], *rows)


@table_of("scale_simulation-cpu")
def simulation_table(record: Record) -> str:
    beginning, ways = "tasks of ", ("generations", "asynchronous", "generations of 500")
    tasks = {key[len(beginning) :]: rows for key, rows in record["results"].items() if key.startswith(beginning)}
    head = ["workers", *(f"{task}: {way}" for task in tasks for way in ways)]
    rows = [
        [f"{int(count):,}", *(f"{found[count][way]:,.0f}" for found in tasks.values() for way in ways)]
        for count in next(iter(tasks.values()))
    ]
    return table(head, *rows)


@text_of("scale_simulation-cpu")
def simulation_check(record: Record) -> str:
    found = record["results"]
    ratios = [100 * (check["ratio"] - 1) for check in found["check"].values()]
    return f"{min(ratios):.1f} to {max(ratios):.1f} % longer than simulated"


@text_of("scale_simulation-cpu")
def driver_time(record: Record) -> str:
    return f"{1000 * record['results']['driver_seconds']:.1f} ms"


@text_of("chaos-cpu")
def chaos(record: Record) -> str:
    found = record["results"]
    kills = found["kills"]
    named = f"{kills['driver']} commands, {kills['node']} nodes, {kills['worker']} workers"
    same = f"{found['same']} of {found['runs']}"
    return f"{sum(kills.values())} kills\n({named}) in {found['runs']} runs, {same} with the journal of one process"
