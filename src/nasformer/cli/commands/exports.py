"""The command that takes a model out of the house: export."""

from __future__ import annotations

from pathlib import Path

from nasformer.cli.commands.common import print_json
from nasformer.cli.config import ExportCommand
from nasformer.errors import UserError
from nasformer.runs.folder import model_folder
from nasformer.runs.ship import export_folder


def export(command: ExportCommand, as_json: bool) -> None:
    if not command.run or not command.to:
        raise UserError("say what to export and where to: nasformer export RUN --to FOLDER")
    formats = [name.strip() for name in command.formats.split(",") if name.strip()]
    done = export_folder(model_folder(Path(command.run)), command.to, formats)
    if as_json:
        return print_json({"folder": command.to, "differences": done.differences, "notes": done.notes})
    print(f"{command.to}: logits differ from the model's by at most")
    for file, difference in done.differences.items():
        print(f"  {file:18} {'not checked' if difference is None else f'{difference:.1e}'}")
    for note in done.notes:
        print(note)
    return None
