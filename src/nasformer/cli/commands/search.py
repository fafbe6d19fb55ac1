"""Commands that train supernets, search, and plan: run, plan, advise, train, search and evolve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from nasformer.cli.commands.results import print_verdict
from nasformer.cli.main import print_json
from nasformer.data.options import DataOptions
from nasformer.runs.options import AdviseCommand, EvolveCommand, PlanCommand, RunCommand, SearchCommand, TrainCommand
from nasformer.search.options import BudgetOptions
from nasformer.tasks.options import TaskOptions, task_scores
from nasformer.utils.progress import in_hours
from nasformer.utils.tables import print_table
from nasformer.utils.units import format_quantity

if TYPE_CHECKING:
    from nasformer.results.folder import RunFolder
    from nasformer.results.result import RunResult
    from nasformer.runs.plan import Plan
    from nasformer.search.problem import ModelResult
    from nasformer.space_search import Dimension, Step

PLAN_COSTS = {"params": "parameters", "macs": "MACs", "latency_ms": "latency, ms", "memory_bytes": "memory, bytes"}


def run(options: RunCommand, as_json: bool) -> None:
    from nasformer.runs.pretrained import run_cut, run_pretrained
    from nasformer.runs.run import run_supernet

    start = (run_cut if options.no_training else run_pretrained) if options.from_ else run_supernet
    show(start(options), options, as_json)


def search(options: SearchCommand, as_json: bool) -> None:
    from nasformer.runs.run import search_run, training_free_run

    show(training_free_run(options) if options.proxy else search_run(options), options, as_json)


def train(options: TrainCommand, as_json: bool) -> None:
    from nasformer.runs.run import train_run

    run, loss = train_run(options)
    if not run.world.main:
        return None
    if as_json:
        return print_json({"supernet": str(run.folder.supernet), "loss": loss})
    return print(f"trained: {run.folder.supernet}, loss {loss:.3f}")


def show(result: RunResult | None, options: RunCommand | SearchCommand, as_json: bool) -> None:
    """Prints a result; under torchrun only the main process has one."""
    if result is None:
        return
    print_json(result.to_dict()) if as_json else print_result(result, options)


def print_result(result: RunResult, options: RunCommand | SearchCommand) -> None:
    from nasformer.results.folder import RunFolder

    out, scores = options.out, score_columns(result)
    judged = f", {result.candidates:,} candidates, untrained" if result.candidates is not None else ""
    where = f" on {result.data}" if result.data and result.proxies is None else ""
    title = f"{result.space}{where}, {result.budget}{judged}"
    print_table(title, ("", "parameters", "MACs", *scores.values()), result_rows(result, list(scores)))
    print_finalists(result)
    print_health(result)
    if result.note and result.proxies is not None:
        print(result.note)
    print(f"winner: {result.arch.to_json()}")
    if result.proxies is None:
        print(RunFolder(out).outputs())
        print_verdict(out)
        print_next(options, result)
    elif out:
        report = RunFolder(out).report
        print(f"report: {report}   next: nasformer retrain {out} --data DATA --out NEW")


def score_columns(result: RunResult) -> dict[str, str]:
    """The scores that the table of a result shows, each with the heading of its column."""
    if result.proxies is not None:
        return {name: name for name in result.proxies}
    score = result.metric
    metric = "" if score == "accuracy" else f" {task_scores().get(score, score)}"
    columns = {f"holdout_{score}": f"held-out{metric}", f"test_{score}": f"test{metric}"}
    if "test_agreement" not in result.winner.scores:
        return columns
    by_labels = columns if f"test_{score}" in result.winner.scores and score != "agreement" else {}
    return by_labels | {"holdout_agreement": "held-out agreement", "test_agreement": "test agreement"}


def result_rows(result: RunResult, scores: Sequence[str]) -> list[list[str]]:
    """The models, first what the run ships; several random archs as one row, after the winner."""
    random = result.random if len(result.random) > 1 else []
    rows = [
        [result.label(model), format_quantity(model["params"]), format_quantity(model["macs"])]
        + [in_words(name, model.get(name)) for name in scores]
        for model in result.table
        if model not in random
    ]
    if random:
        name = result.label(replace(random[0], name=f"mean of {len(random)} random"))
        rows.insert(2 if result.finished else 1, [name, *mean_cells(random, scores)])
    return rows


def mean_cells(models: Sequence[ModelResult], scores: Iterable[str]) -> list[str]:
    """Random archs in one row: their mean, with its standard error; result.json and the report have each of them."""
    from nasformer.search.problem import MeanScore

    costs = [format_quantity(MeanScore.of(models, name).mean) for name in ("params", "macs")]
    means = {name: MeanScore.of(models, name) for name in scores}
    words = [f"{in_words(name, mean.mean)} ± {in_words(name, mean.error)}" for name, mean in means.items()]
    return [*costs, *words]


def print_next(options: RunCommand | SearchCommand, result: RunResult) -> None:
    """Prints commands that continue from a run with a model."""
    import shlex

    from nasformer.results.folder import RunFolder

    folder = RunFolder(options.out)
    commands = [["nasformer", "predict", options.out, "PHOTO.jpg"]]
    if not folder.export.exists():
        commands.append(["nasformer", "export", options.out, "--to", f"{folder}-export"])
    task = task_words(options)
    if task:
        further = ["--question", "what is this?"] if options.task == "vqa" else ["--out", f"{folder}-answers"]
        commands[0] += further
    images = [*task, *data_words(options, data=result.data)]
    commands.append(["nasformer", "finetune", str(folder.model), *images, "--out", f"{folder}-finetuned"])
    for words in commands:
        print(f"next: {shlex.join(words)}")


def in_words(name: str, score: float) -> str:
    if score != score:
        return "–"
    from nasformer.report.style import is_share

    return f"{score:.2%}" if is_share(name) else f"{score:.5g}"


def print_finalists(result: RunResult) -> None:
    """Prints the measured latencies of the best candidates, where the search had a profile."""
    latency = result.latency
    if latency is None:
        return
    print(f"latency by {latency.how()}")
    for number, finalist in enumerate(latency.finalists, 1):
        mark = "   <- winner" if finalist.arch == result.winner.arch else ""
        memory = finalist.measured_memory_bytes
        peak = f", {memory / 1e6:.1f} MB" if memory else ""
        times = f"predicted {finalist.latency_ms:.4g} ms, measured {finalist.measured_latency_ms:.4g} ms{peak}"
        print(f"  {number}. {times}{mark}")
    if latency.note:
        print(latency.note)


def print_health(result: RunResult) -> None:
    health = result.health
    if health is None:
        return
    low, high = health.random_range
    drawn, correlation = len(health.subnets) - 2, health.rank_correlation or 0
    print(
        f"supernet: smallest {health.smallest:.2%}, largest {health.largest:.2%}, "
        f"{drawn} random {low:.2%} to {high:.2%}, rank correlation with size {correlation:+.2f}"
    )


def plan(options: PlanCommand, as_json: bool) -> None:
    from nasformer.runs.plan import make_plan

    forecast = make_plan(options)
    print_json(forecast.to_dict()) if as_json else print_plan(forecast)


def advise(options: AdviseCommand, as_json: bool) -> None:
    from dataclasses import asdict

    from nasformer.runs.advise import advise as find_advice

    advice = find_advice(options)
    if as_json:
        return print_json(asdict(advice))
    print(f"{options.data}: {advice.images}; device: {advice.device}")
    print("\n".join(advice.sentences))
    for command in advice.commands:
        print(f"next: {command}")
    return None


def print_plan(plan: Plan) -> None:
    space, disk, share = plan.space, plan.disk, plan.space.share
    print(f"{plan.name} on {plan.data}: {float(space.archs):.3g} architectures, budget {space.budget}")
    part = f"{share.fitting / share.draws:.2%} of {share.draws} random ones fit"
    print(f"satisfiable: {part} (95 % interval {share.low:.2%} to {share.high:.2%})")
    columns = ("", "smallest", "median", "largest", "that fit: smallest", "median", "largest")
    rows = []
    for name, spread in space.space.items():
        values = [*vars(spread).values(), *vars(space.within[name]).values()]
        rows.append([PLAN_COSTS[name], *(format_quantity(value) for value in values)])
    print_table("", columns, rows)
    print_times(plan)
    kept = ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in disk.items() if name not in ("total", "free"))
    print(f"disk: {disk['total'] / 1e6:,.1f} MB ({kept}), free {disk['free'] / 1e9:,.1f} GB")
    for warning in plan.warnings:
        print(f"warning: {warning}")


def print_times(plan: Plan) -> None:
    time = plan.time
    last = "retraining from scratch" if time.full is None else "training of the winner"
    tuned = {"fine-tuning of the teacher": time.teacher, "fine-tuning of the full net": time.full}
    stages = {label: stage for label, stage in tuned.items() if stage}
    stages |= {"supernet training": time.train, "search": time.search, last: time.retrain}
    stages |= {stage.name: stage for stage in time.baselines}
    width = max(map(len, stages))
    for label, stage in stages.items():
        parts = f"{stage.count:,} {stage.unit}s of {stage.seconds_each:.3g} s"
        memory = f", {stage.memory_bytes / 1e9:.2g} GB of memory" if stage.memory_bytes else ""
        if stage.count:
            print(f"{label:{width}} {in_hours(stage.seconds):>9}   {parts} on {time.device}{memory}")
    if time.rest_seconds:
        print(f"{'images, reports, export':{width}} {in_hours(time.rest_seconds):>9}")
        print(f"{'total':{width}} {in_hours(time.seconds):>9}")
    if time.note:
        print(time.note)


def evolve(options: EvolveCommand, as_json: bool) -> None:
    from nasformer.runs.run import evolve_run
    from nasformer.utils.files import read_json

    done = 0

    def on_step(number: int, step: Step) -> None:
        nonlocal done
        done = number
        if not as_json:
            print_step(number, step)

    folder = evolve_run(options, on_step)
    if folder is None:
        return None
    if as_json:
        return print_json(read_json(folder.evolution))
    if done < (steps := options.evolve.steps):
        print(f"nothing shifted in step {done}: the evolution ends here, {steps - done} short of {steps} steps")
    print(f"record: {folder.evolution}   report: {folder.report}")
    return print(f"search the last space: {search_command(options, folder, done)}")


def print_step(number: int, step: Step) -> None:
    from rich.box import SIMPLE

    error = step.error
    print(f"space {number}: {step.space}\n  {step.cardinality:.3g} architectures, {len(step.errors)} of them judged")
    if step.carried:
        print(f"  weights of the space before: {step.carried}")
    print(f"  E-T error {error.et:.2f} %: {error.expected:.2f} % expected, {error.top:.2f} % at the top")
    rows = [dimension_row(name, dimension) for name, dimension in step.dimensions.items()]
    print_table("", ("dimension", "values", "slope", "next", "notice"), rows, box=SIMPLE, padding=(0, 1))


def dimension_row(name: str, dimension: Dimension) -> list[str]:
    from nasformer.space.dimensions import format_values

    values, following = (format_values(each).replace(",", " ") for each in (dimension.values, dimension.next))
    slope = "–" if dimension.slope is None else f"{dimension.slope:+.2f} ± {dimension.stderr:.2f}"
    return [name, values, slope, following if dimension.shift else "", dimension.notice]


def search_command(options: EvolveCommand, folder: RunFolder, number: int) -> str:
    """The command that searches the last space as S3 does, on the same images and within the same budget."""
    import shlex

    words = ["nasformer", "search", "--supernet", str(folder.path / "steps" / str(number) / "supernet")]
    words += [*data_words(options), *option_words(options, BudgetOptions)]
    words += ["--search.mutation", "paper", "--search.population", "50", "--out", str(folder.path / "searched")]
    return shlex.join(words)


def data_words(options: DataOptions, **changes: Any) -> list[str]:
    """The image options of a command as words of another command."""
    return option_words(options, DataOptions, **changes)


def task_words(options: TaskOptions) -> list[str]:
    """The task of a command and its options as words of another command; none for classification.

    >>> task_words(TaskOptions("segment").with_task_options(ignore="11,255", test_flip=True))
    ['--task', 'segment', '--segment.ignore', '11,255', '--segment.test-flip', 'True']
    """
    if options.task == "classify":
        return []
    of_task = options.of_task
    return ["--task", options.task, *(option_words(of_task, type(of_task), f"{options.task}.") if of_task else [])]


def option_words(options: Any, group: type[Any], prefix: str = "", **changes: Any) -> list[str]:
    """The options of a group that differ from their defaults, as words; `changes` replace values."""
    usual, words = group(), list[str]()
    for item in fields(group):
        value = changes.get(item.name, getattr(options, item.name))
        if value != getattr(usual, item.name):
            words += [f"--{prefix}{item.name.replace('_', '-')}", str(value)]
    return words
