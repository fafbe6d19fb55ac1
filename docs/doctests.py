"""Shows the doctests in docstrings as code: an extension of griffe, which reads our sources for the API page."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?! *\n|\Z).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around doctests, which Markdown would take for quotations."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
