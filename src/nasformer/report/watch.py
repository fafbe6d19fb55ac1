"""The report of a run that goes on, served on this machine alone: drawn anew when its files have changed.

Nothing is written into the run folder, and the page needs no other file. Requests that name another host than this one
are refused, so that no page of the web can read the report through a browser here.
"""

from __future__ import annotations

import tempfile
import threading
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from nasformer.errors import UserError
from nasformer.report.html import document, save_pictures
from nasformer.report.page import candidate_tooltips, page
from nasformer.report.plots import FIGURES
from nasformer.results.contents import read_run
from nasformer.results.folder import RunFolder

HOST = "127.0.0.1"


class LiveReport:
    """The page of a run as it is now.

    Args:
        seconds: After which a browser asks again.
    """

    def __init__(self, folder: RunFolder, seconds: int) -> None:
        if folder.kind() is None:
            raise UserError(f"{folder} is no run folder; name one that a command has begun")
        self.folder, self.seconds = folder, seconds
        self.drawn: tuple[list[tuple[str, int]], str] = ([], "")
        self.lock = threading.Lock()  # plots are drawn by one request at a time

    def html(self) -> str:
        with self.lock:
            state = self.state()
            if state != self.drawn[0]:
                self.drawn = state, self.draw()
            return self.drawn[1]

    def state(self) -> list[tuple[str, int]]:
        """The files that a report is made of, and when they changed."""
        folder = self.folder
        files = [folder.config, folder.result, folder.log, folder.journal, folder.random_journal, folder.workers]
        files += [folder.health, folder.evolution, *sorted(folder.baselines.glob("*/log.jsonl"))]
        return [(str(path), path.stat().st_mtime_ns) for path in files if path.exists()]

    def draw(self) -> str:
        """The page, which reloads itself. A file that is being written may not be readable for a moment."""
        try:
            text = self.page()
        except UserError as error:
            text = document("nasformer", [f"<p>{escape(str(error))}</p>"])
        return text.replace("<head>", f'<head>\n<meta http-equiv="refresh" content="{self.seconds}">', 1)

    def page(self) -> str:
        if self.folder.kind() == "evolution":
            path = self.folder.report
            waiting = document("nasformer", ["<p>The first space is not evaluated yet.</p>"])
            return path.read_text(encoding="utf-8") if path.exists() else waiting
        run = read_run(self.folder.path)
        with tempfile.TemporaryDirectory() as plots:
            return page(run, save_pictures(run, FIGURES, Path(plots), {"score_vs_cost": candidate_tooltips(run)}))


def serve(folder: str | Path, port: int = 8000, seconds: int = 10) -> ThreadingHTTPServer:
    """A server of the live report, to be started by `serve_forever`; port 0 takes any that is free."""
    report = LiveReport(RunFolder(folder), seconds)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host")
            if host not in (HOST, "localhost"):
                return self.send_error(403, "this server is for this machine")
            if self.path != "/":
                return self.send_error(404)
            body = report.html().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def log_message(self, format: str, *arguments: object) -> None:
            """Requests are not worth a line."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise UserError(f"port {port} cannot be used ({error.strerror}); give another --port, or 0 for any") from None
