"""The page: one HTML file with its pictures inside. Nothing from elsewhere, every text escaped, one script (`hover.py`)
that the policy names by its digest: should a text ever slip through, it cannot run.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nasformer.report import hover
from nasformer.report.anatomy import with_operators
from nasformer.report.contents import Model, Run
from nasformer.report.hover import Picture
from nasformer.report.labels import CHOSEN, figure_of, in_a_row, is_share, label, window_in_words
from nasformer.search.problem import Candidate
from nasformer.utils.files import write_text
from nasformer.utils.tables import csv_text, html_row, html_table
from nasformer.utils.units import format_quantity

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #5f6b7a; --line: #dde3ea; --paper: #f5f7f9;
  --card: #ffffff; --mark: #b34a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa7b5; --line: #323c49;
  --paper: #11161c; --card: #1a212a; --mark: #ff9c5a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p, figcaption { color: var(--soft); margin: .3rem 0; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem; margin: 1.4rem 0; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.3; }
.tile span { color: var(--soft); font-size: .9rem; }
.card { overflow-x: auto; }
.note { border-left: 4px solid var(--mark); }
figure { margin: 0; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto .6rem; background: #fff; border-radius: .4rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
.winner td { font-weight: 700; color: var(--mark); }
.pairs td { white-space: normal; overflow-wrap: anywhere; text-align: left; vertical-align: top; }
.words { white-space: normal; text-align: left; font-size: .9rem; }
.pairs td:first-child { color: var(--soft); width: 14rem; }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--soft); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; margin: .6rem 0 0; }
"""

COSTS = ("params", "macs")
POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{hover.DIGEST}'"


def page(run: Run, pictures: Mapping[str, Picture]) -> str:
    """The whole page; `pictures` are named as their captions."""
    title = " on ".join(str(run.config[name]) for name in ("space", "data") if run.config.get(name))
    title = f"nasformer: {title}" if title else "nasformer report"
    parts = [_heading(run, title), _tiles(run), note(run.note), _results(run)]
    parts += [figure(*words, pictures[name]) for name, words in captions(run).items() if name in pictures]
    parts += [_finalists(run), _timm(run), _winner(run), _front(run), *settings_tables(run.config)]
    return document(title, parts)


def document(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(part for part in parts if part)
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{hover.STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n<script>{hover.SCRIPT}</script>\n</body>\n</html>\n"
    )
    return text.encode("utf-8", "replace").decode()  # JSON may hold half a character, a file may not


def _heading(run: Run, title: str) -> str:
    budget = run.budget or ", ".join(window_in_words(name, *ends) for name, ends in run.limits.items())
    known = {"budget": budget, "seed": run.config.get("seed"), "folder": run.folder.resolve().name}
    words = " · ".join(f"{name}: {value}" for name, value in known.items() if value not in (None, ""))
    untrained = f"<p>{escape(_untrained(run.proxies))}</p>" if run.proxies else ""
    return f"<h1>{escape(title)}</h1>\n<p>{escape(words)}</p>\n{untrained}"


def _untrained(proxies: Sequence[str]) -> str:
    return f"A search without training: models were judged by {in_a_row(proxies)} with their initial weights."


def _tiles(run: Run) -> str:
    """The few numbers that people look for first."""
    tiles: list[tuple[str, str]] = []
    if run.winner:
        for name in ("test_accuracy", "holdout_accuracy", *run.raised, *COSTS, "measured_latency_ms"):
            if not math.isnan(value := run.winner.scores.get(name, math.nan)):
                tiles.append((format_quantity(value) if name in COSTS else figure_of(name, value), label(name)))
        tiles += _gain(run)
    if run.candidates:
        tiles.append((f"{len(run.candidates):,}", "candidates judged"))
        if lost := sum(math.isnan(c.scores.get(run.score, math.nan)) for c in run.candidates):
            tiles.append((f"{lost:,}", "of them without a score, not in the plots"))
    return tiles_of(tiles)


def tiles_of(tiles: Sequence[tuple[str, str]]) -> str:
    """Numbers in large letters, each with its name."""
    cells = [f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in tiles]
    return f'<div class="tiles">{"".join(cells)}</div>' if cells else ""


def _gain(run: Run) -> list[tuple[str, str]]:
    """Points of test accuracy that the winner is above the mean of the random references."""
    scores = [model.scores.get("test_accuracy", math.nan) for model in [*run.models[:1], *run.references("random")]]
    mine, *others = scores
    known = [score for score in others if not math.isnan(score)]
    if math.isnan(mine) or not known:
        return []
    rival = "the random reference" if len(known) == 1 else f"the mean of {len(known)} random references"
    return [(f"{100 * (mine - sum(known) / len(known)):+.1f} points", f"test accuracy over {rival}")]


def note(note: str) -> str:
    return f'<p class="card note">{escape(note)}</p>' if note else ""


def _results(run: Run) -> str:
    if not run.models:
        return ""
    said = f"<p>{escape(beside_in_words(run))}</p>" if run.candidates else ""
    return f"<h2>Results</h2>\n{table(run.models, without='measured_')}\n{said}"


def table(models: Sequence[Model], names: Sequence[str] = (), without: str = "") -> str:
    """Models by rows, their scores by columns: costs first, shares last.

    What relative positions cost, and scores that begin with `without`, are left to result.json: accuracy must stay in
    sight on a narrow page.
    """
    hidden = ("position_", without) if without else ("position_",)
    found = dict.fromkeys(name for model in models for name in model.scores if not name.startswith(hidden))
    names = names or sorted(found, key=is_share)  # stable: otherwise in the order of the file
    return html_table(["model", *map(label, names)], [_row(model, names) for model in models])


def _row(model: Model, names: Sequence[str]) -> str:
    cells = [model.name, *(figure_of(name, model.scores.get(name, math.nan)) for name in names)]
    return html_row(cells, kind="winner" if model.name in CHOSEN else "")


def figure(title: str, caption: str, picture: Picture) -> str:
    """A figure with its words; one with dots to point at as SVG, others as images."""
    title, caption = escape(title), escape(caption)
    if hover.DOT in picture.svg:
        shown, kind = f'{hover.inline(picture.svg)}<div class="told" role="status" hidden></div>', " hover"
    else:
        source = f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"
        shown, kind = f'<img src="{source}" alt="{title}. {caption}">', ""
    return f'<h2>{title}</h2>\n<figure class="card{kind}">{shown}<figcaption>{caption}</figcaption></figure>'


def _finalists(run: Run) -> str:
    if run.latency is None:
        return ""
    rows = finalists_of(run)
    shown = table(rows, list(dict.fromkeys(name for one in rows for name in one.scores))) if rows else ""
    return f"<h2>Finalists</h2>\n{note(run.latency.note)}\n{shown}\n<p>{escape(finalists_in_words(run))}</p>"


def _timm(run: Run) -> str:
    if not run.candidates or not run.winner:
        return ""
    shown = table([run.winner, *run.timm], COSTS) if run.timm else ""
    return f"<h2>timm models within the budget</h2>\n{shown}\n<p>{escape(timm_in_words(run))}</p>"


def _winner(run: Run) -> str:
    if run.winner is None or not run.winner.arch:
        return ""
    return folded("The architecture as JSON", f"<pre>{escape(json.dumps(run.winner.arch))}</pre>")


def _front(run: Run) -> str:
    by = " by all ranks together" if run.ranked else ""
    return folded(f"The Pareto front{by} ({len(run.front)})", table(run.front)) if run.front else ""


def folded(title: str, content: str) -> str:
    return f'<details class="card"><summary>{escape(title)}</summary>{content}</details>'


def settings_tables(config: Mapping[str, Any]) -> list[str]:
    """The config: single values in one table, each group of values in one of its own."""
    single = {name: value for name, value in config.items() if not isinstance(value, dict)}
    groups = {name: value for name, value in config.items() if isinstance(value, dict) and value}
    tables = {"config": single, **groups} if single else groups
    return [f"<h2>{escape(name.capitalize())}</h2>\n{_pairs(values)}" for name, values in tables.items()]


def _pairs(values: Mapping[str, Any]) -> str:
    rows = [html_row([str(name), in_words(value)]) for name, value in values.items()]
    return f'<div class="card"><table class="pairs"><tbody>{"".join(rows)}</tbody></table></div>'


def in_words(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ----------------------------------------------------------------------------------------------------------------------
# What the page says about each figure, in words for the score that this run's search raised.
# ----------------------------------------------------------------------------------------------------------------------

PLACES = (
    "Each dot is a candidate with the score it had in the search; the stairs are the best score that each cost buys. "
    "The marks are the models of the results table{}; a hollow one lies beyond the edge. Point at a dot to see its "
    "architecture; candidates.csv holds all of them."
)

TABLES = "Numbers are exact; a bar runs from the smallest value in the space (short) to the largest (full)."
BOXES = (
    "A box is a block in the colour of its operator; × is a width in terms of another: the block's inner one (of the "
    "stage's), that of queries (q) or values (v)."
)


def captions(run: Run) -> dict[str, tuple[str, str]]:
    """Title and caption of every figure by its name, in the order of the page."""
    accuracy = run.score == "accuracy"
    name, several = label(run.score), _one_of_several(run)
    return {
        "bars": (
            "Winner and references" if len(run.models) > 1 else "Accuracy and size",
            "Accuracy on the test set, and size.",
        ),
        "score_vs_cost": (
            "Accuracy against cost" if accuracy else f"Score ({name}) against cost",
            PLACES.format(f", at their {name}" if accuracy else "") + several,
        ),
        "search_progress": (
            "Progress of the search",
            f"Scores ({name}) of the candidates as the search went on.{several}",
        ),
        "architecture": (
            "The architecture",
            f"Layer by layer, the input at the top. {BOXES if with_operators(run) else TABLES}",
        ),
        "operator_shares": (
            "Operators by stage",
            "The operators that the blocks of each stage have: in random archs of the same space and budget (pale), in "
            "the candidates as the search went on, and in the winner.",
        ),
        "training_curve": ("Training", "Training loss and learning rate."),
        "operator_curves": (
            "The supernet, operator by operator",
            "Held-out accuracy of the largest nets of a single operator, with the shared weights of the moment; of a "
            "space without such nets, of its smallest and its largest.",
        ),
        "health": (
            "Health of the supernet",
            "Accuracy of the same subnets as the training went on, with the shared weights of the moment, above its "
            f"loss.{''.join(f' Alarm: {alarm}.' for alarm in run.alarms)}",
        ),
        "finalists": (
            "Predicted and measured",
            "The best candidates of the search, the best by score at the top: what the profile predicted of them, and "
            "what they were measured to need before one of them won.",
        ),
    }


def _one_of_several(run: Run) -> str:
    if not run.ranked:
        return ""
    names = in_a_row([label(name) for name in run.ranked])
    return f" The search went by the ranks of {names} together; the figure shows {label(run.score)} alone."


# ----------------------------------------------------------------------------------------------------------------------
# What a page says of the baselines: what was done to be fair to them, and what was not.
# ----------------------------------------------------------------------------------------------------------------------


def beside_in_words(run: Run) -> str:
    """How random search and models from elsewhere came into the results table."""
    said = [_random_search(run)]
    if run.references("timm:"):
        said.append("timm models were trained from scratch by the same recipe, on the same images, for as many steps.")
    return " ".join(part for part in said if part)


def _random_search(run: Run) -> str:
    rows = [model.name for model in run.references("best of")]
    if run.rival:
        return (
            f"Random search at equal budget: {len(run.rival):,} random architectures were judged as the search's "
            f"{len(run.candidates):,} candidates were."
        )
    if rows:
        return (
            f"No random search at equal budget was made (--search.baseline random makes one); “{rows[0]}” is that "
            "of the random candidates with which the search began."
        )
    if {candidate.origin for candidate in run.candidates} == {"random"}:
        return f"The search itself was random: the winner is the best of {len(run.candidates):,} random architectures."
    return ""


def timm_in_words(run: Run) -> str:
    if not run.timm:
        return "None of the well-known timm models that nasformer has counted fits this budget."
    return (
        "Well-known models that fit, those nearest to the winner in size first. Parameters are for the same number of "
        "classes; MACs were counted at 224 px and are scaled by the area for other images. Latency and memory are not "
        "known of them. To train one by the same recipe: --baseline timm:NAME."
    )


# ----------------------------------------------------------------------------------------------------------------------
# The finalists of a search that went by a profile, as a table and in words: predictions beside measurements.
# ----------------------------------------------------------------------------------------------------------------------


def costs_of(run: Run) -> list[str]:
    """What is shown of finalists: the latency, and where it has a limit the memory."""
    return ["latency_ms", *(name for name in run.limits if name == "memory_bytes")]


def finalists_of(run: Run) -> list[Model]:
    """The candidates that were measured, the best by score first. The winner goes by that name."""
    if run.latency is None:
        return []
    won = run.winner.arch if run.winner else None
    return [Model("winner" if one.arch == won else one.name, one.arch, scores_of(run, one)) for one in run.latency.rows]


def scores_of(run: Run, one: Model) -> dict[str, float]:
    """What is known of a finalist; its score is that of the search."""
    found = {run.score: run.score_of(one)}
    for name in costs_of(run):
        found[f"predicted_{name}"] = one.scores.get(name, math.nan)
        found[f"measured_{name}"] = one.scores.get(f"measured_{name}", math.nan)
    return {name: value for name, value in found.items() if not math.isnan(value)}


def finalists_in_words(run: Run) -> str:
    """What was measured, or that nothing could be; the reason is in the note."""
    if run.latency is None:
        return ""
    if not run.latency.rows:
        return f"No candidate could be measured: the latencies of this page are predictions for {run.latency.how}."
    return (
        "The best candidates by score were measured before one of them won, since a prediction is no promise. "
        f"Latency by {run.latency.how}."
    )


# ----------------------------------------------------------------------------------------------------------------------
# The candidates of a search as a table for spreadsheets and data frames.
# ----------------------------------------------------------------------------------------------------------------------


def write_candidates(path: Path, candidates: Sequence[Candidate]) -> None:
    """Writes the table; without candidates there is none, not even one from before."""
    if candidates:
        write_text(path, as_csv(candidates))
    else:
        path.unlink(missing_ok=True)


def as_csv(candidates: Sequence[Candidate]) -> str:
    """A line for each candidate: its descent, its costs and scores, its arch as JSON. Unknown scores are empty.

    >>> from nasformer.space import Arch
    >>> one = Candidate(7, 1, "mutation", (3, 5), Arch(depth=12), {"params": 500, "accuracy": math.nan})
    >>> print(as_csv([one]))
    id,generation,origin,parents,params,accuracy,arch
    7,1,mutation,3 5,500,,"{""depth"":12}"
    <BLANKLINE>
    """
    scores = list(dict.fromkeys(name for one in candidates for name in one.scores))
    rows = []
    for one in candidates:
        known = ["" if math.isnan(value := one.scores.get(name, math.nan)) else value for name in scores]
        parents = " ".join(map(str, one.parents))
        rows.append([one.id, one.generation, one.origin, parents, *known, one.arch.to_json()])
    return csv_text(["id", "generation", "origin", "parents", *scores, "arch"], rows)
