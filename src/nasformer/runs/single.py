"""Runs that train one model: retraining from scratch, and fine-tuning from the weights of a supernet or of a model.

Their folder is that of a search without supernet and journal; the winner is the model that was trained. Fine-tuning
may go to other data: images of another size resample the positions, other classes get a fresh classifier, other
channels a first convolution that is adapted to them; all other weights are inherited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from nasformer.data.files import BadImages
from nasformer.data.loaders import BatchSource
from nasformer.data.options import DataOptions
from nasformer.data.sources import EXTENSIONS
from nasformer.errors import UserError
from nasformer.models.base import Backbone, options_from_json
from nasformer.models.dense import head_option_names
from nasformer.models.registry import get_space
from nasformer.models.storage import (
    CONFIG as MODEL_CONFIG,
    SUPERNET_CONFIG,
    ModelConfig,
    WeightFacts,
    build_from,
    class_names,
    fingerprint,
    fresh_model,
    load_model,
)
from nasformer.report.plots import write_confusion
from nasformer.results.contents import read_run
from nasformer.results.folder import RunFolder
from nasformer.results.result import RunResult
from nasformer.runs.base import (
    Run,
    command_space,
    holds_out_others,
    image_options,
    load_as_trained,
    normalize_as,
    normalize_as_pretrained,
    open_run,
    same_classes,
)
from nasformer.runs.baselines import check_baselines, count_images, split_accuracies, train_baselines
from nasformer.runs.finish import ship
from nasformer.runs.options import EvaluateCommand, FinetuneCommand, RetrainCommand
from nasformer.runs.pools import Work, check_ray, run_tasks, training_memory
from nasformer.search.problem import ModelResult
from nasformer.space.arch import Arch
from nasformer.supernet.storage import find_pretrained, load_supernet
from nasformer.supernet.supernet import Supernet, recalibrate
from nasformer.tasks.options import PredictOptions
from nasformer.tasks.registry import Evaluation, Prediction, TrainedModel, get_task, write_evaluation
from nasformer.train.evaluate import Confusion
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World, choose_device
from nasformer.utils.progress import say

Single = TypeVar("Single", RetrainCommand, FinetuneCommand)


def retrain_run(command: RetrainCommand) -> RunResult | None:
    """Trains an architecture from scratch; the result, in the main process. A finished training is left as it is."""
    command = resolve_retrain(command)
    arch = command_space(command).arch(command.arch or "")
    with open_run(command, "model") as run:
        check_baselines(run, command.baseline)
        model = fresh_model(run.space, arch, run.options.seed).to(run.device)
        return train_single(run, model, "retrained", command.train, command.baseline, export=command.export)


def retrain_several(command: RetrainCommand) -> dict[str, RunResult]:
    """Trains the best candidates of a search, or with several seeds; results by their folders."""
    check_out(command)
    check_ray(command)
    if command.top > 1 and (not command.run or command.arch):
        raise UserError("--top takes the candidates of a run: nasformer retrain RUN --top 5, without --arch")
    tasks = retrain_tasks(command)
    device, memory = choose_device(command.device), partial(retrain_memory, tasks)
    results = run_tasks(RetrainJob(), tasks, command, device, Path(command.out), "retraining", memory)
    results = [retrain_run(task) for task in tasks] if results is None else results
    return {task.out: result for task, result in zip(tasks, results, strict=True) if result}


def retrain_tasks(command: RetrainCommand) -> list[RetrainCommand]:
    """One command for each training, in folders named after the candidate's rank and the seed."""
    archs, seeds = {"": command.arch}, {"": command.seed}
    if command.top > 1:
        best = best_candidates(RunFolder(command.run or ""), command.top)
        archs = {str(rank): arch.to_json() for rank, arch in enumerate(best, 1)}
    if command.seeds > 1:
        seeds = {f"seed-{seed}": seed for seed in range(command.seed, command.seed + command.seeds)}
    alone = replace(command, executor="local", jobs=1, top=1, seeds=1)
    return [
        replace(alone, arch=arch, seed=seed, out=str(Path(command.out, rank, name)))
        for rank, arch in archs.items()
        for name, seed in seeds.items()
    ]


def retrain_memory(commands: Sequence[RetrainCommand]) -> int:
    """Memory that the largest of the trainings takes."""
    resolved = [resolve_retrain(command) for command in commands]
    space = command_space(resolved[0])
    archs = [space.arch(command.arch or "") for command in resolved]
    largest = max(archs, key=lambda arch: space.costs(arch)["macs"])
    with TemporaryDirectory() as folder:
        run = Run(RunFolder(folder), resolved[0], space, commands[0].train, World(), list_bad=False)
        return training_memory(run.batches, run.space.build(largest), run.recipe, run.device)


def best_candidates(folder: RunFolder, count: int) -> list[Arch]:
    """The best candidates of a run's search by the score that it raised; of equal ones the cheaper."""
    run = read_run(folder.path)
    judged = sorted(run.judged, key=lambda c: (-c.scores[run.score], c.scores.get("params", 0)))
    if not judged:
        raise UserError(f"{folder} has no candidates; search it first")
    return [candidate.arch for candidate in judged[:count]]


@dataclass(frozen=True)
class RetrainJob:
    """Runs retraining commands, each in its run folder, where a killed training resumes."""

    def open(self, device: str) -> Work:
        return lambda command: retrain_run(replace(command, device=device))


def finetune_run(command: FinetuneCommand) -> RunResult | None:
    """Trains an architecture further from the weights of a run, supernet or model."""
    if not command.run:
        raise UserError("say whose weights to start from: nasformer finetune RUN --data DATA --out NEW")
    source = find_source(command)
    command = resolve_finetune(command, source)
    with open_run(command, "model") as run:
        check_held_out(run.options, source)
        run.adopt_words(source.model, source.folder.facts())
        normalize_as(run.batches, source.folder)
        normalize_as_pretrained(run.batches, source.images)
        weights, keep = fingerprint(source.model), same_classes(run.batches, source.model, source.fact("classes"))
        model = build_from(source.model, run.space, run.options.seed, keep_classifier=keep).to(run.device)
        if source.shared:
            recalibrate(model, run.batches, run.options.calibration_images, run.world)
        return train_single(run, model, "finetuned", command.train, weights=weights, export=command.export)


def train_single(
    run: Run,
    model: Backbone,
    name: str,
    recipe: Recipe,
    baseline: str = "",
    weights: str | None = None,
    export: bool = False,
) -> RunResult | None:
    """Trains a model in a run folder, evaluates and publishes it.

    Args:
        name: What the model is called in the results.
        baseline: Models of timm to train alike, such as "timm:resnet18".
        weights: The fingerprint of those to start from.
    """
    settings = {"space": run.space.name, **run.train_settings, "weights": weights}
    seed = run.options.seed
    train_model(model, run.batches, recipe, folder=run.folder.train, seed=seed, settings=settings, label=name)
    references = train_baselines(run, baseline, recipe)
    scores = {**run.space.costs(model.arch), **split_accuracies(model, run.batches, recipe.precision, run.world)}
    if not run.world.main:
        return None
    winner = ModelResult(name, model.arch.to_dict(), scores)
    result = RunResult(run.space.name, run.options.data, winner, references, images=count_images(run.batches))
    run.publish(model, result)
    if export:
        ship(run.folder)
    return result


# What a command leaves open is as in the run that it names.


def resolve_retrain(command: RetrainCommand) -> RetrainCommand:
    """The command with the space, the options and the winner of the run that it names."""
    check_out(command)
    if not command.run:
        if not command.arch:
            raise UserError("say what to retrain: nasformer retrain RUN, or --space SPACE --arch ARCH")
        return command
    folder = RunFolder(command.run)
    space, options = searched_space(folder, command.space), searched_options(folder)
    arch, task = command.arch or folder.read_result().arch.to_json(), folder.read_config().settings.get("task")
    return complete_command(command, space, options, arch, task, folder.facts())


def resolve_finetune(command: FinetuneCommand, source: PretrainedSource) -> FinetuneCommand:
    """The command with the space, the options and the arch of the model that it starts from."""
    check_out(command)
    space, model = source.space or command.space, source.model
    if command.task == "classify" and model.task != "classify":
        raise UserError(f"{source.folder} is a model for another task than classification; add --task {model.task}")
    if not space:
        raise UserError(f"{source.folder} names no space; name it with --space")
    if command.space and command.space != space:
        raise UserError(f"{source.folder} is of the space {space}, not {command.space}; leave --space out")
    arch, facts = model.arch.to_json(), source.folder.facts()
    return complete_command(command, space, model.options, arch, model.task, facts)


def complete_command(
    command: Single, space: str, options: Mapping[str, Any], arch: str, task: str | None, facts: Mapping[str, Any]
) -> Single:
    """The command with a space, options and an arch; but channels and classes are those of the data to train on now.

    Args:
        task: What the options were for: where it is the same, what the command leaves open of its task is as there.
        facts: Saved with the weights, such as the ids of pixels that they were not trained on.
    """
    merged = {name: value for name, value in options.items() if name not in ("num_classes", "in_chans")}
    merged |= command.model_options()
    head = {name: merged.pop(name) for name in head_option_names() if name in merged}
    if command.task == task:
        command = command.with_left_open({**facts, **head})
    shape = {name: merged.pop(name, None) for name in ("img_size", "patch_size", "num_classes", "in_chans")}
    return replace(command, space=space, arch=arch, model=merged, **shape)


def check_out(command: RetrainCommand | FinetuneCommand) -> None:
    """Refuses an output folder that would overwrite the result or the model to start from."""
    if command.run and command.out and Path(command.out).resolve() == Path(command.run).resolve():
        raise UserError(f"{command.out} is the folder to start from; train in another --out folder")


def searched_space(folder: RunFolder, name: str | None) -> str:
    """The space that a run searched; refuses another name than that."""
    space = folder.read_config().space or name
    if not space:
        raise UserError(f"{folder.config} names no space; name it with --space")
    if name and name != space:
        raise UserError(f"{folder} searched {space}, not {name}; ask for --space {space}")
    return space


def searched_options(folder: RunFolder) -> dict[str, Any]:
    """The model options of a search. One by a proxy leaves no model behind: its options are those asked for."""
    model, config = folder.model / MODEL_CONFIG, folder.read_config()
    requested = {"img_size": config.img_size, "patch_size": config.patch_size} | config.model
    options = ModelConfig.load(model).options if model.exists() else requested
    return options_from_json({name: value for name, value in options.items() if value is not None})


# Weights to start from.


@dataclass
class PretrainedSource:
    """A model with weights to start from.

    Args:
        folder: Where they are, and facts about them.
        model: The architecture with these weights.
        space: The name of its space, where that is known.
        shared: Whether they were a supernet's, whose statistics of batch norm fit no single architecture.
        images: What timm knows of the images that a net of its own was trained on.
    """

    folder: RunFolder
    model: Backbone
    space: str | None
    shared: bool
    images: WeightFacts = field(default_factory=WeightFacts)

    def fact(self, name: str) -> Any:
        return self.folder.facts(name).get(name)


def find_source(command: FinetuneCommand) -> PretrainedSource:
    """The weights that a command starts from: those of a supernet, of a model, or of a net of timm.

    Of a run that has both, those of its model where that was trained on its own, or else the winner's inherited ones.
    """
    path = Path(command.run)
    if command.run.startswith("timm:"):
        if command.arch:
            raise UserError(f"{command.run} is a net, which has its architecture; leave --arch out")
        net = find_pretrained(command.run)
        return PretrainedSource(RunFolder(path), net.model, net.space.name, shared=False, images=net.facts)
    shared = path.is_file() or (path / "supernet").is_dir() or (path / SUPERNET_CONFIG).exists()
    if shared and (command.arch or not is_finished(RunFolder(path))):
        supernet = load_supernet(path, get_space(command.space) if command.space else None)
        arch = supernet.space.arch(command.arch) if command.arch else RunFolder(path).winner(supernet.space)
        return PretrainedSource(RunFolder(path), extract(supernet, arch), supernet.space.name, shared=True)
    folder = RunFolder(model_folder(path))
    if command.arch:
        raise UserError(f"{folder} is a model, which has its architecture; leave --arch out, or name a supernet")
    source = PretrainedSource(folder, load_model(folder.path), None, shared=False)
    source.space = source.fact("space")
    return source


def is_finished(run: RunFolder) -> bool:
    """Whether the winner of a run was trained on its own, and is better for it."""
    return run.result.exists() and run.read_result().finished is not None


def extract(supernet: Supernet, arch: Arch) -> Backbone:
    """The arch out of the supernet. A preset may be of another space and too large for it."""
    try:
        return supernet.extract(arch)
    except (KeyError, RuntimeError):
        raise UserError(f"the arch does not fit into a supernet of {supernet.space.name}: {arch.to_json()}") from None


def model_folder(path: Path) -> Path:
    """The folder of a model, which may be in a run folder."""
    if (path / "model").is_dir():
        return path / "model"
    if (path / "result.json").exists():
        raise UserError(f"{path} has no trained model; make one: nasformer retrain {path} --data DATA --out NEW")
    if (path / "train").is_dir():
        raise UserError(f"{path} has no trained model yet; repeat the command that made it, which resumes the run")
    return path


def check_held_out(options: DataOptions, source: PretrainedSource) -> None:
    """Refuses to hold out images that the source may have been trained on."""
    before = source.fact("trained_on") or {}
    if options.holdout and holds_out_others(options, before):
        raise UserError(
            f"{source.folder} was trained with --holdout {before.get('holdout')} --seed {before.get('seed')}; "
            "give the same, or --holdout 0 to train on all images: others held out would be images that it knows"
        )


# Evaluation of what a folder holds.


def evaluate_folder(command: EvaluateCommand, out: Path | None = None) -> Evaluation:
    """Evaluates the model of a folder, or an architecture with weights from a run's supernet, on a split.

    Args:
        out: A folder for tables and pictures of it.
    """
    folder, model, batches = load_for_evaluation(command)
    split = command.split
    names = class_names(folder.facts("classes").get("classes") or batches.classes, model, folder.path)
    task, facts = get_task(model.task), {"model": str(Path(command.model)), "data": command.data, "split": split}
    evaluation = task.judge(model, batches, split, names)
    if out and isinstance(evaluation, Confusion):
        write_confusion(evaluation, out, **facts)
    elif out:
        write_evaluation(evaluation, out, **facts)
        task.draw(model, batches, split, out, evaluation)
    return evaluation


CHECKED = 1000
"""Image files that are checked before they are answered, so that the first answers of a large folder come soon."""


def predict_images(path: Path, options: PredictOptions) -> Iterator[Prediction]:
    """Predictions of the model of a folder for image files, and for those in folders; unreadable ones are left out."""
    trained, bad, answered = TrainedModel.load(model_folder(path), options.device), BadImages(), False
    task = get_task(trained.model.task)
    for part in parts_to_check(list_images(options.images)):
        if usable := readable_images(part, bad):
            answered = True
            yield from task.predict(trained, replace(options, images=usable))
    reasons = ", ".join(f"{name} cannot be read as an image ({reason})" for name, reason in bad.reasons.items())
    if not answered:
        raise UserError(f"{reasons}; give PNG or JPEG files")
    if reasons:
        say(f"left out: {reasons}")


def list_images(named: Sequence[str]) -> list[str]:
    """The named image files, and those in named folders."""
    return [file for name in named for file in files_of(name)]


def parts_to_check(files: Sequence[str]) -> list[Sequence[str]]:
    """The files in parts; together if some have one name, as tasks then number the files that they write.

    >>> [len(part) for part in parts_to_check([f"{number}.jpg" for number in range(1200)])]
    [1000, 200]
    >>> [len(part) for part in parts_to_check(["a/0.jpg", *(f"{number}.jpg" for number in range(1200))])]
    [1201]
    """
    size = CHECKED if len({Path(file).stem for file in files}) == len(files) else len(files)
    return [files[start : start + size] for start in range(0, len(files), size)]


def readable_images(files: Sequence[str], bad: BadImages) -> list[str]:
    """The files that can be decoded to their end; others are recorded."""
    from nasformer.tasks.masks import check_all, check_image  # with torchvision, which only this command needs here

    sizes = check_all(files, lambda index: check_image(files[index]), bad)
    return [file for file, size in zip(files, sizes, strict=True) if size]


def files_of(name: str) -> list[str]:
    """An image file, or those in a folder."""
    if Path(name).is_file():
        return [name]
    if not Path(name).is_dir():
        raise UserError(f"there is no image {name}; check the path")
    files = sorted(str(path) for path in Path(name).iterdir() if path.suffix.lower() in EXTENSIONS)
    if not files:
        raise UserError(f"the folder {name} has no images; name one with files such as .jpg or .png")
    return files


def load_for_evaluation(command: EvaluateCommand) -> tuple[RunFolder, Backbone, BatchSource]:
    """A model on its device, its folder, and its images, prepared as in its training."""
    path, arch, device = Path(command.model), command.arch, choose_device(command.device)
    inherited = has_only_supernet(path) or bool(arch)
    folder = RunFolder(path if inherited else model_folder(path))
    model = inherited_model(folder, arch) if inherited else load_model(folder.path)
    if command.task not in (model.task, "classify"):
        raise UserError(f"{folder} is a model for --task {model.task}, not {command.task}; leave --task out")
    if model.task != "classify":
        command = replace(command, task=model.task).with_left_open({**folder.facts(), **model.options})
    batches = batches_of(model, folder, command)
    model = model.to(device)
    if inherited:
        recalibrate(model, batches, command.calibration_images)
    return folder, model, batches


def has_only_supernet(path: Path) -> bool:
    return (path / "supernet").is_dir() and not (path / "model").is_dir()


def inherited_model(run: RunFolder, arch: str | None) -> Backbone:
    """An arch with the weights that it inherits from the supernet of a run; by default the winner."""
    supernet = load_supernet(run.path)
    return extract(supernet, supernet.space.arch(arch) if arch else run.winner(supernet.space))


def batches_of(model: Backbone, folder: RunFolder, options: DataOptions) -> BatchSource:
    """Images for a model, prepared as in its training; others than it was trained for are refused."""
    batches = load_as_trained(options, folder, model.options)
    if adopt := getattr(batches, "adopt", None):
        adopt(model.options, folder.facts("classes", "words", "text_encoder"))
    for name, value in image_options(batches).items():
        if model.options[name] != value:
            why = other_classes(folder, batches) if name == "num_classes" else ""
            raise UserError(f"{folder} is for {name} {model.options[name]}, but {options.data} has {value}{why}")
    return batches


def other_classes(folder: RunFolder, batches: BatchSource) -> str:
    """Some classes that images or model have alone, to end a message with."""
    own, theirs = folder.facts("classes").get("classes") or [], batches.classes
    new, lost = ([name for name in a if name not in b] for a, b in ((theirs, own), (own, theirs)))
    texts = [f"{what} {', '.join(map(str, names[:3]))}" for what, names in (("also", new), ("without", lost)) if names]
    return f" ({'; '.join(texts)}); give the same set and the same options of the task as in training"
