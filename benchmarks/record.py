"""A benchmark's record: figures with the versions and the hardware they were measured on."""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch


def hardware() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"gpu": gpu, "cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def without_folders(value: Any) -> Any:
    """Paths as bare names: where a file lay on one machine is nobody else's business."""
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return re.sub(r"(?<![\w.])/\S*/", "", value) if isinstance(value, str) else value


def save_record(
    name: str, settings: dict[str, Any], results: dict[str, Any], out: str | None, quiet: bool = False
) -> None:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    record = {
        "benchmark": name,
        "settings": {name: without_folders(value) for name, value in settings.items()},
        "versions": versions,
        "hardware": hardware(),
        "results": results,
    }
    text = json.dumps(record, indent=1)
    if not quiet:
        print(text)
    if out:
        Path(out).write_text(text + "\n")
