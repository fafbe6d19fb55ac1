"""The page: one HTML file with its pictures inside. Nothing from elsewhere, every text escaped, one script (`hover.py`)
that the policy names by its digest: should a text ever slip through, it cannot run."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nasformer.report import hover
from nasformer.report.beside import beside_in_words, timm_in_words
from nasformer.report.captions import captions
from nasformer.report.contents import Model, Run
from nasformer.report.finalists import finalists_in_words, finalists_of
from nasformer.report.labels import CHOSEN, figure_of, in_a_row, is_share, label, window_in_words
from nasformer.report.picture import Picture
from nasformer.report.tables import html_row, html_table
from nasformer.search import format_quantity

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
