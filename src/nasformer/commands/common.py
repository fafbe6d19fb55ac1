"""What several commands need."""

from __future__ import annotations

import json
from typing import Any

from nasformer.config import SpaceConfig
from nasformer.errors import UserError
from nasformer.families import Space, get_space, list_spaces


def chosen_space(command: SpaceConfig) -> Space:
    if not command.space:
        raise UserError(f"name a space with --space; there are: {', '.join(list_spaces())}")
    return get_space(command.space, **command.model_options())


def print_json(content: Any) -> None:
    print(json.dumps(content))
