"""Commands that read finished or running work: watch, doctor, compare, patterns and attention."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from nasformer.cli.main import print_json
from nasformer.data.options import DataOptions
from nasformer.errors import UserError
from nasformer.tasks.options import task_scores
from nasformer.utils.tables import print_table
from nasformer.utils.units import OptionGroup, check_range, check_threads, format_quantity

if TYPE_CHECKING:
    from torch import Tensor

    from nasformer.data.loaders import BatchSource
    from nasformer.models.base import Backbone
    from nasformer.report.attention import AttentionMaps, Query
    from nasformer.report.compare import Comparison
    from nasformer.report.patterns import Patterns
    from nasformer.results.result import Diagnosis
    from nasformer.search.problem import ModelResult
    from nasformer.tasks.classify import ModelInput


NAME_ROOM = 12  # letters for the names of runs in a table, at least


@dataclass
class DoctorCommand(OptionGroup):
    """Is the supernet of a run in good health? Exit code 1 where there is an alarm."""

    positional = ("run",)
    example = "nasformer doctor runs/digits"

    run: str = ""
    """the run folder, of a training that has ended or goes on"""
    data: str = ""
    """the images, where they are no longer where the training found them"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    threads: int | Literal["auto"] = "auto"
    """threads of the CPU for each operation; auto: those of the training"""

    def __post_init__(self) -> None:
        check_threads(self)


@dataclass
class WatchCommand(OptionGroup):
    """Show the report of a run while it goes on, in a browser on this machine. Ends with Ctrl-C."""

    positional = ("run",)
    example = "nasformer watch runs/digits"

    run: str = ""
    """the run folder"""
    port: int = 8000
    """where the page is: http://127.0.0.1:PORT, which no other machine can reach; 0: any that is free"""
    seconds: int = 10
    """after how long the page reloads"""

    def __post_init__(self) -> None:
        check_range(self, "port", 0, 65535, whole=True)
        check_range(self, "seconds", 1, 3600, whole=True)


@dataclass
class CompareCommand(OptionGroup):
    """Runs side by side: winners, settings that differ, fronts, progress and training in common plots."""

    positional = ("runs",)
    example = "nasformer compare runs/first runs/second --out runs/comparison"

    runs: list[str] = field(default_factory=list)
    """the run folders"""
    out: str = ""
    """a folder for compare.html, compare.json and plots"""


@dataclass
class PatternsCommand(OptionGroup):
    """Patterns in the winners of several searches of one space, by stage, compared with random architectures."""

    positional = ("runs",)
    example = "nasformer patterns runs/seed0 runs/seed1 runs/seed2 --out runs/patterns"

    runs: list[str] = field(default_factory=list)
    """the run folders of searches that differ in their seeds"""
    out: str = ""
    """a folder for patterns.json and patterns.png"""


def watch(options: WatchCommand, as_json: bool) -> None:
    from nasformer.report.page import serve

    if not options.run:
        raise UserError("say which run: nasformer watch RUN")
    with serve(options.run, options.port, options.seconds) as server:
        address = f"http://{server.server_address[0]!s}:{server.server_address[1]}"
        print_json({"address": address}) if as_json else print(f"{options.run}: {address}   (Ctrl-C ends)", flush=True)
        server.serve_forever()


def doctor(options: DoctorCommand, as_json: bool) -> int:
    """Prints what was found; 1 where there is an alarm, so that scripts can tell."""
    from nasformer.runs.doctor import examine

    if not options.run:
        raise UserError("say which run: nasformer doctor RUN")
    diagnosis = examine(options.run, options.data, options.device)
    print_json(diagnosis.to_dict()) if as_json else print_diagnosis(diagnosis, Path(options.run))
    return 1 if diagnosis.alarms else 0


def print_diagnosis(diagnosis: Diagnosis, folder: Path) -> None:
    title = f"{len(diagnosis.subnets)} fixed subnets on {diagnosis.images}, at step {diagnosis.step}"
    rows, score = [subnet_row(model, diagnosis.score) for model in diagnosis.subnets], task_scores()[diagnosis.score]
    print_table(title, ("", "parameters", "layers", "width", score), rows)
    ranks = [f"with {name} {signed(rank)}" for name, rank in diagnosis.correlations.items()]
    print(f"rank correlation of {score} {', '.join(ranks)}")
    if diagnosis.taus:
        print(f"ranks from snapshot to snapshot (Kendall's tau): {' '.join(map(signed, diagnosis.taus))}")
    for name, accuracy in diagnosis.baselines.items():
        print(f"for comparison: {name} {accuracy:.2%}")
    for alarm in diagnosis.alarms:
        print(f"alarm: {alarm.finding}\n       {alarm.advice}")
    print(f"{verdict_on(diagnosis)}: {folder / 'plots' / 'health.png'}")


def subnet_row(model: ModelResult, score: str) -> Sequence[str]:
    sizes = format_quantity(model["params"]), f"{model['depth']:.0f}", f"{model['width']:.2f}"
    return model.name, *sizes, f"{model[score]:.2%}"


def verdict_on(diagnosis: Diagnosis) -> str:
    """The state of a supernet in a few words."""
    if diagnosis.alarms:
        return f"{len(diagnosis.alarms)} to look at"
    best = max(model[diagnosis.score] for model in diagnosis.subnets)
    equal = [name for name, accuracy in diagnosis.baselines.items() if accuracy >= best]
    if not equal:
        return "healthy"
    return f"healthy, but no better than {equal[0]} (a longer training may help: --train.epochs)"


def signed(number: float | None) -> str:
    return "–" if number is None else f"{number:+.2f}"


def compare(options: CompareCommand, as_json: bool) -> None:
    from nasformer.report.compare import compare_runs, write_comparison
    from nasformer.results.folder import check_output

    out = check_output(options.out, "compare.json") if options.out else None
    comparison = compare_runs(options.runs)
    page = write_comparison(comparison, out) if out else None
    if as_json:
        return print_json(comparison.to_dict())
    print_comparison(comparison)
    if page:
        print(f"report: {page}")
    return None


def print_comparison(comparison: Comparison) -> None:
    """The winners in a table: accuracies first, then as many columns as the terminal has room for."""
    from nasformer.report.style import format_score, format_setting, is_share, label
    from nasformer.search.problem import shown_scores

    winners, efforts = comparison.winners(), comparison.efforts().values()
    scores = dict.fromkeys(name for model in winners for name in shown_scores(model.scores))
    cells = {name: [format_score(name, model.get(name)) for model in winners] for name in scores}
    columns = {label(name): cells[name] for name in scores if is_share(name)}
    columns["candidates"] = [f"{effort.candidates:,}" for effort in efforts]
    columns["seed"] = [format_setting(effort.seed) for effort in efforts]
    columns |= {label(name): cells[name] for name in scores if not is_share(name)}
    columns, dropped, room = fit_columns(columns)
    names = ["\n".join(wrap(model.name, room)) for model in winners]
    headings = [heading.replace(" ", "\n") for heading in columns]
    print_table("winners", ("", *headings), zip(names, *columns.values(), strict=True))
    if dropped:
        print(f"no room for {', '.join(dropped)}: widen the terminal, or see them with --json or --out")
    for name, settings in comparison.differences().items():
        print(f"{name}: {' | '.join(map(format_setting, settings))}")


def fit_columns(columns: dict[str, list[str]]) -> tuple[dict[str, list[str]], list[str], int]:
    """The columns that fit into the terminal, the names of the others, and the room for the names of the rows."""
    from rich.console import Console

    room, shown = Console().width - 4, dict[str, list[str]]()
    for heading, cells in columns.items():
        width = 3 + max(map(len, [*cells, *heading.split()]))
        if room - width >= NAME_ROOM:
            shown[heading], room = cells, room - width
    return shown, [heading for heading in columns if heading not in shown], max(room, 1)


def patterns(options: PatternsCommand, as_json: bool) -> None:
    from nasformer.report.patterns import find_patterns, read_winners, write_patterns
    from nasformer.results.folder import check_output

    out = check_output(options.out, "patterns.json") if options.out else None
    space, budget, winners = read_winners([Path(run) for run in options.runs])
    comparison = find_patterns(space, winners, budget)
    if out:
        write_patterns(comparison, out, options.runs)
    print_json(comparison.to_dict()) if as_json else print_patterns(comparison)


def print_patterns(patterns: Patterns) -> None:
    """A table by stage, winners beside random archs, and a sentence for each verdict."""
    from rich import box

    from nasformer.report.patterns import rows

    title = f"{patterns.title}, budget: {patterns.budget}"
    caption = f"shares and means; in brackets those of {patterns.draws} random archs"
    style = {"box": box.SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}
    cells = [(name, *row) for name, row in rows(patterns)]
    print_table(title, ("", *patterns.together), cells, caption=caption, **style)
    for verdict in patterns.verdicts:
        print(verdict.sentence)
    if patterns.repaired:
        print(
            f"the budget is narrow: {patterns.repaired} of {patterns.draws} random archs had to be adjusted to fit it, "
            "so they are not quite a fair sample"
        )


def print_verdict(run: str) -> None:
    """Prints the verdict on a run, and advice."""
    from nasformer.results.contents import read_run
    from nasformer.results.verdict import judge

    verdict = judge(read_run(run))
    if verdict is None:
        return
    print("\n".join(verdict.sentences))
    for advice in verdict.advice:
        print(f"advice: {advice}")


# The command that draws where the heads of a block look: attention.


MOST = 3
"""Pairs of heads that are printed."""


@dataclass
class AttentionCommand(DataOptions):
    """Draw where the heads of a block look, and how alike they are."""

    positional = ("model", "image")
    main = ("block", "query", "data", "index", "out", "device")
    example = "nasformer attention runs/digits --data digits --block 2 --out attention.png"

    model: str = ""
    """a run folder with a model in it, or a folder that `nasformer extract` or `nasformer export` wrote"""
    image: str = ""
    """an image file; or leave it out and name a test image with --data and --index"""
    block: str = ""
    """3.7 is block 7 of stage 3; 7 is the seventh block of a net without stages; left out: says which there are"""
    query: str = ""
    """who looks: row,column on the block's map, where 0,0 is top left, or cls, the class token; none: the centre"""
    data: str = ""
    """a data set whose test image --index is shown: digits, an .npz file, a folder of images or a set by name"""
    index: int = 0
    """which test image of --data, counted from 0"""
    out: str = "attention.png"
    """the picture to write: .png or .svg"""


def attention(options: AttentionCommand, as_json: bool) -> None:
    from nasformer.models.storage import load_model
    from nasformer.report.attention import attention_blocks, attention_maps
    from nasformer.runs.single import model_folder
    from nasformer.tasks.classify import image_input
    from nasformer.utils.device import choose_device

    check(options)
    folder, query = model_folder(Path(options.model)), parse_query(options.query)
    model = load_model(folder).to(choose_device(options.device))
    if not options.block:
        blocks = ", ".join(attention_blocks(model))
        raise UserError(f"say which block: --block BLOCK; with attention there are: {blocks}")
    shown = from_data(options, folder, model) if options.data else image_input(Path(options.image), folder, model)
    maps = attention_maps(model, shown.x, options.block)
    query = query or (maps.grid[0] // 2, maps.grid[1] // 2)
    draw(maps, shown, query, options)
    print_json(summary(maps, query, options.out)) if as_json else print_maps(maps, options.out)


def check(options: AttentionCommand) -> None:
    if not options.model or bool(options.image) == bool(options.data):
        raise UserError("say which model and image: nasformer attention MODEL IMAGE, or MODEL --data DATA --index N")
    if Path(options.out).suffix not in (".png", ".svg"):
        raise UserError(f"--out is {options.out!r}; give a file that ends in .png or .svg")


def parse_query(text: str) -> Query | None:
    """The position whose attention is drawn; None where none was named.

    >>> parse_query("0,3"), parse_query("cls"), parse_query("")
    ((0, 3), 'cls', None)
    """
    if text in ("", "cls"):
        return "cls" if text else None
    position = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", text)
    if not position:
        raise UserError(f"--query is {text!r}; give row,column on the block's map, such as 0,0, or cls")
    return int(position[1]), int(position[2])


def from_data(options: AttentionCommand, folder: Path, model: Backbone) -> ModelInput:
    """A test image of a data set."""
    from nasformer.results.folder import RunFolder
    from nasformer.runs.base import load_as_trained
    from nasformer.tasks.classify import ModelInput

    batches = load_as_trained(options, RunFolder(folder), model.options)
    return ModelInput(nth_test_image(batches, options.index), batches.mean, batches.std)


def nth_test_image(batches: BatchSource, index: int) -> Tensor:
    count = 0
    for x, _ in batches.evaluation("test", 64):
        if 0 <= index - count < len(x):
            return x[index - count :][:1]
        count += len(x)
    raise UserError(f"--index is {index}; there are {count} test images, so give 0 to {count - 1}")


def draw(maps: AttentionMaps, shown: ModelInput, query: Query, options: AttentionCommand) -> None:
    from nasformer.report.attention import attention_figure
    from nasformer.report.style import png, svg
    from nasformer.utils.files import write_bytes

    out = Path(options.out)
    figure = attention_figure(maps, shown.pixels, query)
    write_bytes(out, (svg if out.suffix == ".svg" else png)(figure))


def summary(maps: AttentionMaps, query: Query, out: str) -> dict[str, Any]:
    """The statistics of the maps as plain values."""
    columns = zip(maps.heads, *(x.tolist() for x in (maps.entropy(), maps.distance(), maps.elsewhere())), strict=True)
    names = ("head", "entropy_bits", "distance", "elsewhere")
    return {
        "block": maps.block,
        "grid": list(maps.grid),
        "query": query if query == "cls" else list(query),
        "heads": [dict(zip(names, (str(head), *values), strict=True)) for head, *values in columns],
        "similarity": maps.similarity().tolist(),
        "mean_similarity": maps.mean_similarity(),
        "picture": out,
    }


def print_maps(maps: AttentionMaps, out: str) -> None:
    rows, columns = maps.grid
    outside = maps.elsewhere().tolist()
    headings = ["head", "entropy (bits)", "distance"]
    if max(outside) > 0:
        headings.append("on the class token" if maps.class_token else "on padding")
    cells = [
        [str(head), f"{entropy:.2f}", f"{distance:.2f}", f"{share:.1%}"][: len(headings)]
        for head, entropy, distance, share in zip(
            maps.heads, maps.entropy().tolist(), maps.distance().tolist(), outside, strict=True
        )
    ]
    print_table(f"heads of block {maps.block}, on a map of {rows} x {columns}", headings, cells)
    pairs = maps.pairs()
    if pairs:
        most = ", ".join(f"{pair.first} and {pair.second} ({pair.similarity:.2f})" for pair in pairs[:MOST])
        print(f"similarity of heads: {maps.mean_similarity():.2f} on average; most alike: {most}")
    print(f"picture: {out}")
