"""YAML files of options, read without running code and without growing beyond their size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from nasformer.errors import UserError

MOST_BYTES = 1 << 20


class PlainLoader(yaml.SafeLoader):
    """YAML's safe loader without aliases, of which a few nested ones stand for billions of values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.YAMLError(
                f"line {event.start_mark.line + 1} has an alias (*{event.anchor}); write the value out"
            )
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, or an error that names the file."""
    try:
        with open(path, "rb") as file:  # read once: it may be a pipe
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read the config file {path}: {error.strerror or error}; check its path") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path} is larger than 1 MB; a config file holds a few options")
    try:
        loaded = yaml.load(content, Loader=PlainLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} is not valid YAML ({reason}); mend that line") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} holds no options; write one a line, such as 'space: autoformer-tiny'")
    return loaded
