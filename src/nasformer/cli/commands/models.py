"""Commands for one model: retrain, finetune, extract, export, evaluate and predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nasformer.cli.commands.results import print_verdict
from nasformer.cli.main import print_json
from nasformer.errors import UserError
from nasformer.models.registry import SpaceOptions
from nasformer.runs.options import EvaluateCommand, FinetuneCommand, RetrainCommand
from nasformer.tasks.options import PredictOptions, task_scores
from nasformer.utils.units import OptionGroup, check_threads, format_quantity

if TYPE_CHECKING:
    from nasformer.results.result import RunResult


@dataclass
class ExtractCommand(SpaceOptions):
    """Cut an architecture out of a supernet, as an ordinary model with its weights."""

    positional = ("run",)
    main = ("to", "arch", "space")
    example = "nasformer extract runs/digits --to my-model"

    run: str = ""
    """a run folder, a supernet folder or a file of supernet weights"""
    arch: str | None = None
    """JSON file, inline JSON or preset; None: the winner of the run's search"""
    to: str = ""
    """the folder to write"""


@dataclass
class ExportCommand(OptionGroup):
    """Write a model for use elsewhere: self-contained Python, torch.export, ONNX; each checked against the model."""

    positional = ("run",)
    example = "nasformer export runs/digits --to exported"

    run: str = ""
    """a run folder with a model in it, or a folder that `nasformer extract` wrote"""
    to: str = ""
    """the folder to write"""
    formats: str = "python,pt2,onnx"
    """which files, beside weights, config and model card: any of python, pt2 and onnx"""
    push_to_hub: str = ""
    """OWNER/NAME: then upload the folder to the Hugging Face Hub, which needs nasformer[hub] and a login"""


@dataclass
class PredictCommand(PredictOptions):
    """Predict on image files: class names with probabilities, or what another task answers."""

    positional = ("model", "images")
    example = "nasformer predict runs/mine photo1.jpg photo2.jpg"

    model: str = ""
    """a run folder with a model in it, or a folder that `nasformer extract` or `nasformer export` wrote"""
    threads: int | Literal["auto"] = "auto"
    """threads of the CPU for each operation; auto: all"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_threads(self)


def retrain(options: RetrainCommand, as_json: bool) -> None:
    from nasformer.runs.single import retrain_run, retrain_several

    if options.top == options.seeds == 1:
        return show(retrain_run(options), options.out, as_json)
    results = retrain_several(options)
    if as_json:
        return print_json([result.to_dict() for result in results.values()])
    for folder, result in results.items():
        show(result, folder, as_json)
    if options.top == 1 and results:
        print_mean(list(results.values()))
    below = "*/*" if options.top > 1 and options.seeds > 1 else "*"
    return print(f"next: nasformer compare {options.out}/{below} --out {options.out}-compared")


def print_mean(results: Sequence[RunResult]) -> None:
    """The score on the test images over several seeds."""
    from nasformer.search.problem import MeanScore

    name = f"test_{results[0].metric}"
    mean = MeanScore.of([result.winner for result in results], name)
    print(f"mean of {mean.count} seeds: {name.replace('_', ' ')} {mean.mean:.2%} ± {mean.error:.2%} (standard error)")


def finetune(options: FinetuneCommand, as_json: bool) -> None:
    from nasformer.runs.single import finetune_run

    show(finetune_run(options), options.out, as_json)


def show(result: RunResult | None, out: str, as_json: bool) -> None:
    from nasformer.results.folder import RunFolder

    if result is None:  # under torchrun only the main process has a result
        return None
    if as_json:
        return print_json(result.to_dict())
    score = result.metric
    what = "" if score == "accuracy" else f"{task_scores().get(score, score)} "
    for model in result.models:
        costs = f"{format_quantity(model['params'])} parameters, {format_quantity(model['macs'])} MACs"
        held_out = f", held-out {model[f'holdout_{score}']:.2%}" if f"holdout_{score}" in model.scores else ""
        print(f"{model.name}: {costs}, test {what}{model[f'test_{score}']:.2%}{held_out}")
    print(RunFolder(out).outputs())
    return print_verdict(out)


def extract(options: ExtractCommand, as_json: bool) -> None:
    from nasformer.models.storage import save_model
    from nasformer.results.folder import RunFolder, check_output
    from nasformer.runs import single
    from nasformer.supernet.storage import load_supernet

    if not options.run or not options.to:
        raise UserError("say what to extract from and where to: nasformer extract RUN --to FOLDER")
    target = check_output(options.to, "model.safetensors", option="--to")
    folder = RunFolder(options.run)
    supernet = load_supernet(folder.path, options.chosen_space() if options.space else None)
    arch = supernet.space.arch(options.arch) if options.arch else folder.winner(supernet.space)
    facts = {**folder.facts(), "space": supernet.space.name}
    save_model(single.extract(supernet, arch), target, **facts)
    costs = supernet.space.costs(arch)
    if as_json:
        return print_json({"folder": options.to, "arch": arch.to_dict(), **costs})
    return print(f"{target}: {format_quantity(costs['params'])} parameters, {format_quantity(costs['macs'])} MACs")


def export(options: ExportCommand, as_json: bool) -> None:
    from nasformer.export.bundle import hub_api, push_to_hub
    from nasformer.runs.finish import export_folder
    from nasformer.runs.single import model_folder

    if not options.run or not options.to:
        raise UserError("say what to export and where to: nasformer export RUN --to FOLDER")
    formats = [name.strip() for name in options.formats.split(",") if name.strip()]
    api = hub_api(options.push_to_hub) if options.push_to_hub else None
    exported = export_folder(model_folder(Path(options.run)), options.to, formats)
    address = {"hub": push_to_hub(exported.folder, options.push_to_hub, api)} if api else {}
    if as_json:
        facts = {"folder": options.to, "differences": exported.differences, "notes": exported.notes}
        return print_json({**facts, **address})
    print(f"{options.to}: logits differ from the model's by at most")
    for file, difference in exported.differences.items():
        print(f"  {file:18} {'not checked' if difference is None else f'{difference:.1e}'}")
    for note in [*exported.notes, *(f"on the Hub: {url}" for url in address.values())]:
        print(note)
    return None


def evaluate(options: EvaluateCommand, as_json: bool) -> None:
    from nasformer.results.folder import check_output
    from nasformer.runs.single import evaluate_folder

    if not options.model:
        raise UserError("say which model: nasformer evaluate FOLDER --data DATA")
    out = check_output(options.out, "evaluation.json") if options.out else None
    evaluation = evaluate_folder(options, out)
    if as_json:
        return print_json(evaluation.to_json())
    first, *others = evaluation.sentences()
    return print("\n".join([f"{options.split}: {first}", *others]))


def predict(options: PredictCommand, as_json: bool) -> None:
    from nasformer.runs.single import predict_images

    if not options.model or not options.images:
        raise UserError("say which model and images: nasformer predict RUN IMAGE [IMAGE ...]")
    predictions = predict_images(Path(options.model), options)
    if as_json:
        return print_json([asdict(prediction) for prediction in predictions])  # type: ignore[call-overload]
    for prediction in predictions:
        print(prediction)
    return None
