"""Runs the code cells of a notebook and stores what they print and draw in it, without Jupyter.

python examples/execute.py examples/digits_search.ipynb
"""

from __future__ import annotations

import ast
import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

Output = dict[str, Any]


def execute(notebook: dict[str, Any]) -> None:
    """Runs all code cells in order and puts their outputs into the notebook."""
    namespace: dict[str, Any] = {}
    number = 0
    with mpl.rc_context({"backend": "agg", "figure.dpi": 80}):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell["execution_count"] = number
                cell["outputs"] = run_cell("".join(cell["source"]), namespace, number)


def run_cell(source: str, namespace: dict[str, Any], number: int = 1) -> list[Output]:
    """The outputs of a cell: printed text, figures, the value of an expression at its end (without a semicolon)."""
    body = ast.parse(source).body
    shown = isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";")
    last = ast.Expression(body.pop().value) if shown else None  # type: ignore[attr-defined]
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), namespace)
        value = eval(compile(last, f"cell {number}", "eval"), namespace) if last else None
    outputs = [{"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())}]
    figures = [{"output_type": "display_data", "metadata": {}, "data": png(figure)} for figure in plt.get_fignums()]
    plt.close("all")
    if value is not None:
        figures.append({"output_type": "execute_result", "execution_count": number, **shown_as(value)})
    return [output for output in outputs if output["text"]] + figures


def shown_as(value: Any) -> Output:
    """How a notebook shows a value: as text, and as the HTML or the picture that it offers."""
    data: dict[str, Any] = {"text/plain": lines(repr(value))}
    metadata = {}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = lines(value._repr_html_())
    if hasattr(value, "_repr_png_"):
        pixels, metadata["image/png"] = value._repr_png_()
        data["image/png"] = base64.b64encode(pixels).decode()
    return {"data": data, "metadata": metadata}


def png(number: int) -> dict[str, str]:
    content = io.BytesIO()
    plt.figure(number).savefig(content, format="png", bbox_inches="tight", metadata={"Software": None})
    return {"image/png": base64.b64encode(content.getvalue()).decode()}


def lines(text: str) -> list[str]:
    """Text as notebooks store it."""
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    content = json.loads(path.read_text(encoding="utf-8"))
    execute(content)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
