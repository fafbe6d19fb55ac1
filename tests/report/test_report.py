from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from nasformer.errors import UserError
from nasformer.report import page as report_page
from nasformer.report.html import SCRIPT, save_picture
from nasformer.report.page import candidate_tooltips, write_report
from nasformer.report.plots import bars, training_curve
from nasformer.report.style import describe_arch
from nasformer.results.contents import read_run
from small_run import contents

from .fake import PLOTS, edit, log_lines, write_log, write_run
from .reading import HOSTILE, PNG, Page, drawable, plots, words_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "digits"
    write_run(run)
    return run


@pytest.fixture(scope="module")
def twins(made: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two copies of the run whose reports were written at once; tests read them only."""
    runs = [copytree(made, tmp_path_factory.mktemp("twin") / "digits") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(write_report, runs)) == [run / "report.html" for run in runs]
    return runs


@pytest.fixture(scope="module")
def reported(twins: list[Path]) -> Path:
    return twins[0]


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return copytree(made, tmp_path / "digits")


def rewrite_journal(run: Path, change: Any) -> None:
    """Applies `change` to every candidate of the journal."""
    path = run / "search" / "journal.jsonl"
    header, *lines = path.read_text().splitlines()
    records = [json.dumps(change(json.loads(line))) for line in lines]
    path.write_text("\n".join([header, *records, ""]))


def test_a_whole_run_has_all_plots_as_sound_pngs(reported: Path) -> None:
    assert plots(reported) == PLOTS
    for path in (reported / "plots").glob("*.png"):
        with Image.open(io.BytesIO(path.read_bytes())) as picture:
            assert picture.format == "PNG"
            picture.load()
            assert min(picture.size) > 200
            assert len(picture.convert("L").getcolors() or []) > 20, f"{path.name} shows next to nothing"


def test_every_plot_is_also_a_sound_svg(reported: Path) -> None:
    assert {path.stem for path in (reported / "plots").glob("*.svg")} == PLOTS
    for path in (reported / "plots").glob("*.svg"):
        assert ElementTree.fromstring(path.read_bytes()).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_page_is_whole_and_needs_nothing_else(reported: Path) -> None:
    page = Page(reported / "report.html")
    text = (reported / "report.html").read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert not {"link", "iframe", "object"} & set(page.tags)
    sources = [value for name, value in page.attributes if name == "src" or name.endswith("href")]
    assert [source for source in sources if not source.startswith((PNG, "#"))] == []
    assert page.tags.count("img") == len(PLOTS) - 1
    assert page.tags.count("svg") == 1


def test_the_policy_lets_our_script_run_and_no_other(reported: Path) -> None:
    page = Page(reported / "report.html")
    assert page.tags.count("script") == 1
    (policy,) = (value for name, value in page.attributes if value.startswith("default-src"))
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" == policy
    assert f"<script>{SCRIPT}</script>" in (reported / "report.html").read_text()


def test_every_dot_tells_its_architecture(reported: Path) -> None:
    candidates = read_run(reported).candidates
    text = (reported / "report.html").read_text()
    links = re.compile(r'<a class="dot" id="([\w-]+)" [^>]*><title>(.*?)</title>', re.S)
    tooltips = {name: html.unescape(words) for name, words in links.findall(text)}
    assert len(tooltips) == len(candidates) + 4  # the winner and three references
    for one in candidates:
        assert describe_arch(one.arch.to_dict()) in tooltips[f"candidate-{one.id}"]
        assert f"{one.scores['params']:,}" in tooltips[f"candidate-{one.id}"]
        assert all(f"#{parent}" in tooltips[f"candidate-{one.id}"] for parent in one.parents)
    assert tooltips["model-0"].startswith("winner\n")


def test_where_archs_have_no_room_the_best_go_first(run: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(report_page, "TOOLTIP_ARCHS", 1000)
    found = read_run(run)
    tooltips = candidate_tooltips(found)
    best = max(found.candidates, key=lambda one: one.scores["accuracy"])
    worst = min(found.candidates, key=lambda one: one.scores["accuracy"])
    assert "blocks: [" in tooltips[f"candidate-{best.id}"]
    assert tooltips[f"candidate-{worst.id}"].endswith("its arch: candidates.csv")
    assert len(tooltips) == len(found.candidates) + 4


def test_the_candidates_are_a_table(reported: Path) -> None:
    with open(reported / "candidates.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, one in zip(rows, read_run(reported).candidates, strict=True):
        assert (int(row["id"]), int(row["generation"]), row["origin"]) == (one.id, one.generation, one.origin)
        assert tuple(map(int, row["parents"].split())) == one.parents
        assert (int(row["params"]), float(row["accuracy"])) == (one.scores["params"], one.scores["accuracy"])
        assert json.loads(row["arch"]) == one.arch.to_dict()


def test_the_page_says_who_won_and_how_it_was_made(reported: Path) -> None:
    result = json.loads((reported / "result.json").read_text())
    text = Page(reported / "report.html").text
    for row in [result["winner"], *result["references"]]:
        assert row["name"] in text
        assert f"{row['params']:,}" in text
        assert f"{100 * row['test_accuracy']:.1f} %" in text
    for words in ("autoformer-micro on digits", "params <= 150K", "weight_decay", "0.05", "torch", "2.11.0"):
        assert words in text
    gain = 100 * (result["winner"]["test_accuracy"] - result["references"][0]["test_accuracy"])
    assert f"{gain:+.1f} points" in text


def test_hostile_text_stays_text(run: Path) -> None:
    evil = f"{HOSTILE} \"'><img src=x onerror=alert(1)> $\\frac{{1}} \x00 \ud800"
    edit(run / "config.json", data=evil, classes=[evil], train={evil: evil}, **{evil: {"a": evil}})
    references = json.loads((run / "result.json").read_text())["references"]
    changed = [{**references[0], "name": evil}, *references[1:]]
    edit(run / "result.json", note=evil, references=changed, budget=evil)
    page = Page(write_report(run))
    assert page.tags.count("script") == 1  # ours
    assert page.tags.count("img") == len(PLOTS) - 1 == len(plots(run)) - 1
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(HOSTILE) >= 9
    for path in (run / "plots").glob("*.svg"):
        assert "script" not in {one.tag.rpartition("}")[2] for one in ElementTree.fromstring(path.read_bytes()).iter()}


def test_the_same_run_gives_the_same_bytes(twins: list[Path]) -> None:
    assert contents(twins[0]) == contents(twins[1])


@pytest.mark.parametrize(
    ("missing", "lost"),
    [
        ("train/log.jsonl", {"training_curve"}),
        ("search/journal.jsonl", {"score_vs_cost", "search_progress"}),
        ("result.json", {"architecture", "bars"}),
    ],
)
def test_what_is_missing_is_left_out(reported: Path, tmp_path: Path, missing: str, lost: set[str]) -> None:
    run = copytree(reported, tmp_path / "digits")
    (run / missing).unlink()
    tags = Page(write_report(run)).tags
    assert tags.count("img") + tags.count("svg") == len(PLOTS) - len(lost)
    assert plots(run) == PLOTS - lost, "a plot of the run as it was before must not stay"
    assert (run / "candidates.csv").exists() == (missing != "search/journal.jsonl")


def test_a_config_alone_makes_a_page(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "img" not in Page(write_report(tmp_path)).tags
    assert plots(tmp_path) == set()


def test_candidates_without_a_score_are_counted_not_drawn(run: Path) -> None:
    rewrite_journal(run, lambda record: {**record, "accuracy": None} if record["id"] % 3 == 0 else record)
    assert drawable(run) == PLOTS
    assert "of them without a score" in words_of(run).text


def test_scores_that_are_all_nan_leave_the_plots_out(run: Path) -> None:
    rewrite_journal(run, lambda record: {**record, "accuracy": math.nan})
    winner = {**json.loads((run / "result.json").read_text())["winner"], "test_accuracy": None}
    edit(run / "result.json", winner=winner, references=[])
    write_log(run, [{**line, "loss": math.nan} for line in log_lines()])
    assert drawable(run) == {"architecture"}
    assert "–" in words_of(run).text


def test_a_few_nan_losses_do_not_hurt(run: Path) -> None:
    write_log(run, [{**line, "loss": None, "lr": None} if line["step"] < 30 else line for line in log_lines()])
    assert drawable(run) == PLOTS


def test_snapshots_leave_the_training_curve_as_it_is(run: Path) -> None:
    before = read_run(run).log
    snapshots = [{"step": step, "epoch": step / 10, "watch": {"conv": 0.5}} for step in (5, 15, 301)]
    write_log(run, [*log_lines(), *snapshots])  # last, where they would replace the lines of their steps
    assert read_run(run).log == before
    assert drawable(run) == PLOTS | {"operator_curves"}


def test_one_candidate_and_one_log_line(tmp_path: Path) -> None:
    assert len(write_run(tmp_path, population=1, generations=1, parents=1)) == 1
    write_log(tmp_path, log_lines(1, 1))
    assert drawable(tmp_path) == PLOTS


def test_a_search_by_another_score(run: Path) -> None:
    path = run / "search" / "journal.jsonl"
    path.write_text(path.read_text().replace('"accuracy"', '"dss"'))
    assert drawable(run) == PLOTS


def test_a_torn_last_line_is_forgiven(run: Path) -> None:
    before = read_run(run)
    for name in ("train/log.jsonl", "search/journal.jsonl"):
        with open(run / name, "a") as file:
            file.write('{"step": 301, "ep')
    after = read_run(run)
    assert (after.log, after.candidates) == (before.log, before.candidates)


DAMAGE = {
    "config.json": ["{", "[1, 2]", '{"budget": "small"}', '{"budget": {"max_params": "many"}}'],
    "result.json": [
        '{"winner": ',
        "3",
        '{"winner": "me"}',
        '{"winner": {"arch": [1]}}',
        '{"winner": {"params": "many"}}',
        '{"winner": {"test_accuracy": "high"}}',
        '{"winner": {"params": 1}, "references": {"a": 1}}',
        '{"winner": {"params": 1}, "references": [4]}',
        '{"front": [null]}',
    ],
    "train/log.jsonl": ["nonsense\n{}\n", "[1]\n", '{"loss": 1}\n', '{"step": 1, "loss": "low"}\n'],
    "search/journal.jsonl": [
        "",
        "{}\n",
        '{"journal":1,"settings":7}\n',
        '{"journal":1,"settings":{}}\n{"id":0}\n',
        '{"journal":1,"settings":{}}\n{"id":0,"generation":0,"origin":"random","parents":[],"arch":{},"params":"x"}\n',
        '{"journal":1,"settings":{}}\n{"id":0,"generation":null,"origin":"random","parents":[],"arch":{}}\n',
    ],
}


@pytest.mark.parametrize(("name", "content"), [(name, text) for name, texts in DAMAGE.items() for text in texts])
def test_damage_is_told_in_one_line(run: Path, name: str, content: str) -> None:
    (run / name).write_text(content)
    with pytest.raises(UserError) as caught:
        write_report(run)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is missing"):
        write_report(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_the_global_state_of_matplotlib_is_left_alone(made: Path, tmp_path: Path) -> None:
    from matplotlib import pyplot

    before = dict(pyplot.rcParams)
    assert save_picture(bars(read_run(made)), tmp_path / "bars")
    assert dict(pyplot.rcParams) == before
    assert pyplot.get_fignums() == []


def test_the_losses_of_baselines_are_drawn_as_well(run: Path) -> None:
    (run / "baselines" / "resnet18").mkdir(parents=True)
    lines = log_lines(2)
    (run / "baselines" / "resnet18" / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figure = training_curve(read_run(run))
    assert figure is not None
    drawn = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert drawn["timm:resnet18"] == [line["loss"] for line in lines]  # so few are not smoothed


@pytest.mark.parametrize(
    ("accuracy", "sentence"),
    [
        (
            0.9,
            "The search paid: the winner is 10.0 points above a random architecture within the budget (95 % interval ",
        ),
        (0.81, "The search did not pay: the winner is 1.0 points above a random architecture within the budget (95 % "),
    ],
)
def test_the_first_sentence_of_the_report_says_whether_the_search_paid(
    accuracy: float, sentence: str, run: Path
) -> None:
    result = json.loads((run / "result.json").read_text())
    scores = {"winner": accuracy, "random": 0.8}
    models = [{**model, "test_accuracy": scores.get(model["name"], 0.7)} for model in result["references"]]
    winner = {**result["winner"], "test_accuracy": accuracy}
    edit(run / "result.json", winner=winner, references=models, images={"holdout": 500, "test": 500, "classes": 10})
    main = report_page.page(read_run(run), {}).partition("<main>")[2]
    first = html.unescape(re.sub(r"<[^>]+>", " ", main.partition("</h1>")[2].partition("</p>")[2])).split()
    assert " ".join(first).startswith(sentence)


def test_only_classifiers_are_set_beside_models_of_timm(run: Path) -> None:
    assert "timm models within the budget" in write_report(run).read_text()
    edit(run / "config.json", task="segment", task_options={"segment": {"decoder_dim": 16}})
    report = write_report(run).read_text()
    assert "timm models" not in report
    assert "<summary>Task options</summary>" in report
