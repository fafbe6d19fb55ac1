"""Writes what README and documentation say from records: the blocks of their pages, and evidence.json of the package.

python benchmarks/results/assemble.py            # writes all of it
python benchmarks/results/assemble.py --check    # fails where a page is not what the records say

A block stands between two comments, with a newline behind the first one for a table, without one within a sentence:

    <!-- from records: speed-h200 -->
    ...
    <!-- end -->

Its name is that of a function in one of the modules here, which turns records into Markdown.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "study"))
sys.path.insert(0, str(Path(__file__).parent))
import evidence
import pretrained  # noqa: F401  # the modules register their blocks
import scores  # noqa: F401
import scratch  # noqa: F401
import speed  # noqa: F401
from records import BLOCKS, RECORDS, ROOT

PACKAGED = ROOT / "src" / "nasformer" / "results" / "evidence.json"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("tutorials/*.md"))]
MARKED = re.compile(r"(<!-- from records: ([\w-]+) -->)(\n?).*?(<!-- end -->)", re.DOTALL)


def with_blocks(text: str) -> str:
    """The page with every block as the records say."""

    def written(match: re.Match[str]) -> str:
        begin, name, newline, end = match.groups()
        if name not in BLOCKS:
            raise SystemExit(f"no block is named {name}; there are: {', '.join(sorted(BLOCKS))}")
        if not newline and text[match.start() - 1] == "\n":
            raise SystemExit(
                f"{name} begins a line, which Markdown takes for HTML; begin it within a line, or end it there"
            )
        around = "\n\n" if newline else ""
        return f"{begin}{around}{BLOCKS[name].text()}{around}{end}"

    return MARKED.sub(written, text)


def assembled() -> dict[Path, str]:
    """Every file that has something from records, as it should be."""
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES if not path.is_symlink()}
    wanted = {path: with_blocks(text) for path, text in pages.items()}
    wanted[PACKAGED] = json.dumps([asdict(item) for item in evidence.assemble()], indent=1) + "\n"
    return wanted


def unused() -> list[str]:
    """Blocks that no page has, and records that no block reads."""
    texts = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    named = {name for _, name, _, _ in MARKED.findall(texts)}
    read = {f"{record}.json" for block in BLOCKS.values() for record in block.records} | evidence.studies()
    records = {path.name for path in RECORDS.glob("*.json")}
    return sorted((BLOCKS.keys() - named) | (records - read))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    wanted = assembled()
    stale = [path for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
    if args.check:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        print(f"stale: {names}; run benchmarks/results/assemble.py" if stale else "as the records say")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    if idle := unused():
        print(f"on no page: {', '.join(idle)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
