"""Report of a run: `report.html`, its figures in `plots/`, and `candidates.csv`."""

from __future__ import annotations

import csv
import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.report.architectures import SAMPLED, operators, split_arch
from nasformer.report.html import (
    Picture,
    document,
    figure,
    figures,
    folded,
    heading,
    note,
    page_title,
    save_pictures,
    settings_tables,
    tiles,
)
from nasformer.report.plots import (
    FIGURES,
    FULL,
    LATENCY,
    TIMM,
    UNIFORM,
    finalist_rows,
    full_net,
    shipped_nets,
    shown_score,
)
from nasformer.report.space_search import write_evolution_report
from nasformer.report.style import (
    CHOSEN,
    describe_arch,
    describe_candidate,
    describe_limit,
    describe_model,
    format_score,
    is_share,
    join_words,
    label,
    metric_name,
    sentence_case,
)
from nasformer.results.contents import RunContents, read_run
from nasformer.results.folder import RunFolder
from nasformer.results.verdict import judge, search_gain
from nasformer.search.problem import Candidate, ModelResult
from nasformer.utils.files import write_text
from nasformer.utils.tables import html_row, html_table, write_csv
from nasformer.utils.units import format_quantity

COSTS = ("params", "macs")
TOOLTIP_ARCHS = 800_000  # characters of architectures in the tooltips of a page; those of the best go first


def write_report(path: str | Path) -> Path:
    """Writes the report into a run folder and gives the path of the HTML file.

    What the folder does not hold is left out, a damaged file raises a UserError. The same folder always gives the same
    bytes. The search of a search space has a report of its own.
    """
    folder = RunFolder(path)
    if folder.kind() == "evolution":
        return write_evolution_report(folder)
    run = read_run(path)
    pictures = save_pictures(run, FIGURES, folder.plots, {"score_vs_cost": candidate_tooltips(run)})
    write_candidates(folder.path / "candidates.csv", run.candidates)
    write_text(folder.report, page(run, pictures))
    return folder.report


def candidate_tooltips(run: RunContents) -> dict[str, str]:
    """The tooltips of `score_vs_cost` by the name of the dot."""
    tooltips = {f"model-{number}": describe_model(model) for number, model in enumerate(run.models)}
    room = TOOLTIP_ARCHS
    for candidate in sorted(run.drawn, key=lambda candidate: -candidate.scores[run.score]):
        room -= len(describe_arch(candidate.arch.to_dict()))
        tooltips[f"candidate-{candidate.id}"] = describe_candidate(candidate, with_arch=room >= 0)
    return tooltips


def write_candidates(path: Path, candidates: Sequence[Candidate]) -> None:
    """Writes a line for each candidate; without candidates, the table of an earlier report is removed."""
    if not candidates:
        return path.unlink(missing_ok=True)
    scores = list(dict.fromkeys(name for candidate in candidates for name in candidate.scores))
    head = ["id", "generation", "origin", "parents", *scores, "arch"]
    return write_csv(path, head, (candidate_row(candidate, scores) for candidate in candidates))


def candidate_row(candidate: Candidate, scores: Sequence[str]) -> list[Any]:
    """Descent, costs and scores (unknown ones are empty), and the arch as JSON.

    >>> from nasformer import Arch
    >>> candidate = Candidate(7, 1, "mutation", (3, 5), Arch(depth=12), {"params": 500, "accuracy": math.nan})
    >>> candidate_row(candidate, ["params", "accuracy"])
    [7, 1, 'mutation', '3 5', 500, '', '{"depth":12}']
    """
    values = [candidate.get(name) for name in scores]
    cells = ["" if math.isnan(value) else value for value in values]
    parents = " ".join(map(str, candidate.parents))
    return [candidate.id, candidate.generation, candidate.origin, parents, *cells, candidate.arch.to_json()]


def page(run: RunContents, pictures: Mapping[str, Picture]) -> str:
    """The HTML page; `pictures` are named as their captions."""
    title = page_title(run.config) or "nasformer report"
    parts = [
        run_heading(run, title),
        verdict_card(run),
        tiles(list(run_tiles(run))),
        note(run.note),
        note(incidents(run)),
        cuts_table(run),
        results(run),
    ]
    parts += [
        *figures(captions(run), pictures),
        *examples(run),
        each_class(run),
        finalists(run),
        timm_models(run),
        winner_arch(run),
        pareto_front(run),
    ]
    return document(title, [*parts, settings_tables(run.config)])


def incidents(run: RunContents) -> str:
    """A note on lost workers and failed candidates of a search; empty where all went well.

    >>> from nasformer.results.folder import RunFolder
    >>> incidents(RunContents(RunFolder("runs/x"), {}, incidents={"worker lost": 2, "node lost": 1}))
    'Incidents: 2 x worker lost, 1 x node lost; interrupted work was repeated.'
    """
    failed = sum("failures" in candidate.scores for candidate in run.candidates)
    words = ", ".join(f"{count} x {event}" for event, count in run.incidents.items())
    events = f"Incidents: {words}; interrupted work was repeated." if words else ""
    if not failed:
        return events
    noun = "candidate" if failed == 1 else "candidates"
    return f"{failed} {noun} could not be evaluated, see search/failures. {events}".strip()


def run_heading(run: RunContents, title: str) -> str:
    budget = run.budget or ", ".join(describe_limit(name, *ends) for name, ends in run.limits.items())
    space = str(run.config.get("space") or "")
    facts = {"budget": budget, "seed": run.config.get("seed"), "folder": run.folder.path.resolve().name}
    text = heading(title, space=space if "[" in space else "", **facts)
    if run.proxies:
        proxies = join_words(run.proxies)
        words = f"A search without training: models were judged by {proxies} with their initial weights."
        text += f"\n<p>{escape(words)}</p>"
    return text


def run_tiles(run: RunContents) -> Iterator[tuple[str, str]]:
    """The most important numbers of a run, each with its name."""
    for name in (f"test_{run.metric}", f"holdout_{run.metric}", *run.raised, *COSTS, "measured_latency_ms"):
        if run.shipped and not math.isnan(value := run.shipped.get(name)):
            yield format_quantity(value) if name in COSTS else format_score(name, value), label(name)
    yield from gain(run)
    if run.candidates:
        yield f"{len(run.candidates):,}", "candidates judged"
        if lost := len(run.candidates) - len(run.judged):
            yield f"{lost:,}", "of them without a score, not in the plots"


def gain(run: RunContents) -> Iterator[tuple[str, str]]:
    """Points of the test metric of the winner above the mean of the random references."""
    gained = search_gain(run.result) if run.result else None
    if run.result and gained:
        count = len(run.result.random)
        other = "the random reference" if count == 1 else f"{count} random references"
        weights = ", all inherited" if run.result.finished else ""
        margin = "" if math.isnan(gained.margin) else f" ± {100 * gained.margin:.1f}"
        yield f"{100 * gained.value:+.1f}{margin}", f"points of {label(f'test_{run.metric}')} over {other}{weights}"


def verdict_card(run: RunContents) -> str:
    """The verdict on the run and advice."""
    verdict = judge(run)
    if verdict is None:
        return ""
    first, *others = verdict.sentences
    lines = [f"<strong>{escape(first)}</strong>", *map(escape, others)]
    lines += [f"Next: {escape('; '.join(verdict.advice))}."] if verdict.advice else []
    return f'<div class="card note">{"".join(f"<p>{line}</p>" for line in lines)}</div>'


def results(run: RunContents) -> str:
    if run.result is None:
        return ""
    words = f"<p>{escape(baselines_in_words(run))}</p>" if run.candidates else ""
    table = models_table(run.result.table, first=run.raised, hide=("measured_",), names_of=run.name_of)
    return f"<h2>Results</h2>\n{table}\n{words}"


def models_table(
    models: Sequence[ModelResult],
    names: Sequence[str] = (),
    first: Sequence[str] = (),
    hide: tuple[str, ...] = (),
    names_of: Callable[[ModelResult], str] = lambda model: model.name,
) -> str:
    """Models by rows, their scores by columns.

    Args:
        names: The scores to show; by default accuracies, then the scores in `first`, then all others. What relative
            positions cost is left to result.json: it fits no narrow page.
        hide: Beginnings of the names of scores that are not shown.
        names_of: What models are called.
    """
    scores = dict.fromkeys(name for model in models for name in model.scores)
    shown = [name for name in scores if not name.startswith(("position_", *hide))]
    names = names or sorted(shown, key=lambda name: (not is_share(name), name not in first))
    head = ["model", *map(label, names)]
    rows = [
        html_row(
            [names_of(model), *(format_score(name, model.get(name)) for name in names)],
            kind="winner" if model.name in CHOSEN or model.name.startswith("winner, ") else "",
            head=["", *head[1:]],
        )
        for model in models
    ]
    return html_table(head, rows)


def baselines_in_words(run: RunContents) -> str:
    """A paragraph on how random search and models of timm were trained and judged."""
    words = ""
    if run.random_search:
        words = (
            f"Random search at equal budget: {len(run.random_search):,} random architectures were judged as the "
            f"search's {len(run.candidates):,} candidates were."
        )
    elif rows := run.references("best of"):
        words = (
            f"No random search at equal budget was made (--search.baseline random makes one); “{rows[0].name}” is that "
            "of the random candidates with which the search began."
        )
    elif {candidate.origin for candidate in run.candidates} == {"random"}:
        count = f"{len(run.candidates):,}"
        words = f"The search itself was random: the winner is the best of {count} random architectures."
    if run.references("timm:"):
        own = "fine-tuned from their weights, as the full net was,"
        start = own if run.config.get("from_") else "trained from scratch"
        words += f" timm models were {start} by the same recipe, on the same images, for as many steps."
    return words.strip()


def finalists(run: RunContents) -> str:
    """The candidates that were measured, or why none was."""
    if run.latency is None:
        return ""
    rows, how = finalist_rows(run), run.latency.how()
    words = f"No candidate could be measured: the latencies of this page are predictions for {how}."
    if rows:
        words = f"The best candidates by score were measured before the winner was chosen. Latency by {how}."
    table = models_table(rows, list(dict.fromkeys(name for row in rows for name in row.scores))) if rows else ""
    return f"<h2>Finalists</h2>\n{note(run.latency.note)}\n{table}\n<p>{escape(words)}</p>"


def cuts_table(run: RunContents) -> str:
    """The table "give up x points, gain y ms", and how latency was measured."""
    full, score = full_net(run), shown_score(run)
    nets = [model for model in shipped_nets(run) if math.isfinite(model.get(score))]
    if full is None or not nets:
        return ""
    timed = math.isfinite(full.get(LATENCY))
    head = ["net", label(score), "given up", "MACs", "of the full net's", "folder"]
    head[3:3] = ["latency", "gained", "times as fast"] if timed else []
    rows = [html_row([FULL, *cut_cells(full, full, score, timed), ""], head=["", *head[1:]])]
    for model in nets:
        kind, folder = ("winner", "model") if model is run.shipped else ("", f"{model.name}/model")
        name = "winner" if model is run.shipped else format_quantity(model["macs"])
        rows.append(html_row([name, *cut_cells(model, full, score, timed), folder], kind=kind, head=["", *head[1:]]))
    for model in run.references(TIMM):
        rows.append(html_row([model.name, *cut_cells(model, full, score, timed), ""], head=["", *head[1:]]))
    how = f"<p>Latency: {escape(run.timing)}.</p>" if run.timing and timed else ""
    return f"<h2>What you give up, and what you gain</h2>\n{html_table(head, rows)}\n{uniform_in_words(run)}\n{how}"


def uniform_in_words(run: RunContents) -> str:
    """How the uniform cut compares with the winner, both with inherited weights: neither was trained on its own."""
    score, uniform = shown_score(run), next(iter(run.references(UNIFORM)), None)
    if run.winner is None or uniform is None or not math.isfinite(uniform.get(score)):
        return ""
    searched, even = (format_score(score, model.get(score)) for model in (run.winner, uniform))
    before = "" if run.winner is run.shipped else " before its own training"
    words = (
        f"Is it the search? The winner has {searched} {label(score)}{before}, a uniform cut within the budget {even}."
    )
    return f"<p>{escape(words)}</p>"


def cut_cells(model: ModelResult, full: ModelResult, score: str, timed: bool) -> Iterator[str]:
    """The cells of a net in the table of cuts, relative to the full net."""
    lost = 100 * (full.get(score) - model.get(score))
    yield format_score(score, model.get(score))
    yield "" if model is full else f"{lost:+.1f} points".replace("+", "") if lost > 0 else f"none ({-lost:+.1f})"
    if timed and not math.isfinite(model.get(LATENCY)):
        yield from ("", "", "")
    elif timed:
        yield f"{model.get(LATENCY):.3g} ms"
        yield "" if model is full else f"{full[LATENCY] - model.get(LATENCY):.3g} ms"
        yield "" if model is full else f"{full[LATENCY] / model.get(LATENCY):.2f}"
    yield format_quantity(model["macs"])
    yield f"{model['macs'] / full['macs']:.0%}"


def timm_models(run: RunContents) -> str:
    if not run.candidates or not run.winner or run.config.get("task", "classify") != "classify":
        return ""  # these are classifiers
    table = models_table([run.winner, *run.timm], COSTS) if run.timm else ""
    words = "None of the well-known timm models that nasformer has counted fits this budget."
    if run.timm:
        words = (
            "Well-known models that fit, those nearest to the winner in size first. Parameters are for the same number "
            "of classes; MACs were counted at 224 px and are scaled by the area for other images. Latency and memory "
            "are not known of them. To train one by the same recipe: --baseline timm:NAME."
        )
    return f"<h2>timm models within the budget</h2>\n{table}\n<p>{words}</p>"


def examples(run: RunContents) -> list[str]:
    """Test images of a task other than classification, each with the truth and the model's answer."""
    caption = "The truth and the model's answer, by the score of each held-out image (test image, where none are)."
    files = {name: run.folder.pictures / f"{name}.png" for name in ("best", "median", "worst")}
    pictures = {name: Picture(file.read_bytes(), b"") for name, file in files.items() if file.is_file()}
    return [figure(f"The {name} image", caption, picture) for name, picture in pictures.items()]


CLASS_HEADS = {"accuracy": "right", "iou": "IoU", "sq": "SQ", "rq": "RQ"}


def each_class(run: RunContents) -> str:
    """The scores of each class, of a task other than classification."""
    file = run.folder.pictures / "per_class.csv"
    if not file.is_file():
        return ""
    with file.open(newline="", encoding="utf-8") as lines:
        head, *rows = csv.reader(lines)
    head = [CLASS_HEADS.get(name) or metric_name(name) for name in head]
    cells = [html_row([name, *map(class_cell, values)], head=head) for name, *values in rows]
    title = f"Each class, on the held-out images (test images, where none are): {len(rows)}"
    return folded(title, html_table(head, cells))


def class_cell(text: str) -> str:
    """A cell of per_class.csv: counts and words as they are, shares in percent, a dash where there is no score.

    >>> [class_cell(text) for text in ("103605", "0.25107", "1e-05", "thing", "")]
    ['103,605', '25.1 %', '0.0 %', 'thing', '–']
    """
    try:
        return f"{int(text):,}" if text.isdecimal() else f"{100 * float(text):.1f} %"
    except ValueError:
        return text or "–"


def winner_arch(run: RunContents) -> str:
    if run.winner is None or not run.winner.arch:
        return ""
    return folded("The architecture as JSON", f"<pre>{escape(json.dumps(run.winner.arch))}</pre>")


def pareto_front(run: RunContents) -> str:
    by = " by all ranks together" if run.ranked else ""
    title = f"The Pareto front{by} ({len(run.front)})"
    return folded(title, models_table(run.front, first=run.raised)) if run.front else ""


def captions(run: RunContents) -> dict[str, tuple[str, str]]:
    """Title and caption of every figure by its name, in the order of the page."""
    finalists = (
        "Predicted and measured",
        "The best candidates of the search, the best by score at the top: what the profile predicted, and what was "
        "measured before the winner was chosen.",
    )
    return {**result_captions(run), **search_captions(run), **training_captions(run), "finalists": finalists}


def result_captions(run: RunContents) -> dict[str, tuple[str, str]]:
    metric, cut_by = (metric_name(score.removeprefix("test_")) for score in (run.metric, shown_score(run)))
    full = full_net(run)
    timed = full is not None and math.isfinite(full.get(LATENCY))  # at the end of a run
    hollow = " Hollow marks have the weights they inherit: compare them with each other."
    return {
        "trade_off": (
            f"{sentence_case(cut_by)} against {'latency' if timed else 'MACs'}",
            f"The full net and what the run ships, on test images, against {'measured latency and ' * timed}MACs."
            f"{hollow * (run.winner is not run.shipped)}",
        ),
        "cuts": (
            "What was cut where",
            "What each block keeps (blue) of what the full net has (pale). A cross: the whole branch is left out.",
        ),
        "bars": (
            "Winner and references" if len(run.models) > 1 else f"{sentence_case(metric)} and size",
            f"{sentence_case(metric)} on the test set, and size.",
        ),
    }


def search_captions(run: RunContents) -> dict[str, tuple[str, str]]:
    accuracy, name = run.score == "accuracy", label(run.score)
    ranks = ""
    if run.ranked:
        names = join_words([label(score) for score in run.ranked])
        ranks = f" The search went by the ranks of {names} together; the figure shows {name} alone."
    return {
        "score_vs_cost": (
            "Accuracy against cost" if accuracy else f"Score ({name}) against cost",
            "Each dot is a candidate with the score it had in the search; the line is the best score at each cost. The "
            f"marks are the models of the results table{f', at their {name}' * accuracy}; a hollow one lies beyond the "
            f"edge. Point at a dot to see its architecture; candidates.csv holds all of them.{thinning(run)}{ranks}",
        ),
        "search_progress": (
            "Progress of the search",
            f"Scores ({name}) of the candidates as the search went on.{ranks}",
        ),
        "architecture": (
            "The architecture",
            f"Layer by layer, the input at the top. {architecture_legend(run)}",
        ),
        "operator_shares": (
            "Operators by stage",
            "The operators of the blocks of each stage: in random archs of the same space and budget (pale), in the "
            f"candidates as the search went on{' (a sample of them)' * (len(run.candidates) > SAMPLED)}, and in the "
            "winner.",
        ),
    }


def training_captions(run: RunContents) -> dict[str, tuple[str, str]]:
    metric = metric_name(run.metric.removeprefix("test_"))
    return {
        "training_curve": ("Training", "Training loss and learning rate."),
        "operator_curves": (
            "The supernet, operator by operator",
            f"Held-out {metric} of the largest nets of a single operator, with the shared weights of the moment; of a "
            "space without such nets, of its smallest and its largest.",
        ),
        "health": (
            "Health of the supernet",
            f"{sentence_case(metric)} of the same subnets as the training went on, with the shared weights of the "
            f"moment, above its loss.{''.join(f' Alarm: {alarm}.' for alarm in run.alarms)}",
        ),
    }


def thinning(run: RunContents) -> str:
    """How many candidates of a long search are drawn, in words; empty where all are."""
    drawn, judged = len(run.drawn), len(run.judged)
    if drawn == judged:
        return ""
    return f" Of {judged:,} candidates, {drawn:,} are drawn: the front, the best, and a random sample of the others."


def architecture_legend(run: RunContents) -> str:
    if run.winner and operators([split_arch(run.winner.arch)]):
        return (
            "A box is a block in the colour of its operator; × is a width relative to another: the block's inner one "
            "(to the stage's), that of queries (q) or values (v)."
        )
    return "Numbers are exact; a bar runs from the smallest value in the space (short) to the largest (full)."


# The live report of a run, served on this machine alone: drawn anew when its files have changed.
#
# Nothing is written into the run folder, and the page needs no other file. Requests that name another host than this
# one are refused, so that no page of the web can read the report through a browser here.


HOST = "127.0.0.1"


class LiveReport:
    """The page of a run as it is now.

    Args:
        seconds: After which a browser asks again.
    """

    def __init__(self, folder: RunFolder, seconds: int) -> None:
        if folder.kind() is None:
            raise UserError(f"{folder} is no run folder; name one that a command has begun")
        self.folder, self.seconds = folder, seconds
        self.drawn: tuple[list[tuple[str, int]], str] = ([], "")
        self.lock = threading.Lock()  # plots are drawn by one request at a time

    def html(self) -> str:
        with self.lock:
            state = self.state()
            if state != self.drawn[0]:
                self.drawn = state, self.draw()
            return self.drawn[1]

    def state(self) -> list[tuple[str, int]]:
        """The files that a report is made of, and when they changed."""
        folder = self.folder
        files = [folder.config, folder.result, folder.log, folder.journal, folder.random_journal, folder.workers]
        files += [folder.health, folder.evolution, *sorted(folder.baselines.glob("*/log.jsonl"))]
        return [(str(path), path.stat().st_mtime_ns) for path in files if path.exists()]

    def draw(self) -> str:
        """The page, which reloads itself. A file that is being written may not be readable for a moment."""
        try:
            text = self.page()
        except UserError as error:
            text = document("nasformer", [f"<p>{escape(str(error))}</p>"])
        return text.replace("<head>", f'<head>\n<meta http-equiv="refresh" content="{self.seconds}">', 1)

    def page(self) -> str:
        if self.folder.kind() == "evolution":
            path = self.folder.report
            waiting = document("nasformer", ["<p>The first space is not evaluated yet.</p>"])
            return path.read_text(encoding="utf-8") if path.exists() else waiting
        run = read_run(self.folder.path)
        with tempfile.TemporaryDirectory() as plots:
            return page(run, save_pictures(run, FIGURES, Path(plots), {"score_vs_cost": candidate_tooltips(run)}))


def serve(folder: str | Path, port: int = 8000, seconds: int = 10) -> ThreadingHTTPServer:
    """A server of the live report, to be started by `serve_forever`; port 0 takes any that is free."""
    report = LiveReport(RunFolder(folder), seconds)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host")
            if host not in (HOST, "localhost"):
                return self.send_error(403, "this server is for this machine")
            if self.path != "/":
                return self.send_error(404)
            body = report.html().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def log_message(self, format: str, *arguments: object) -> None:
            """Logs nothing: requests are not worth a line."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise UserError(f"port {port} cannot be used ({error.strerror}); give another --port, or 0 for any") from None
