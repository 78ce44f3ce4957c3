"""Shared by the tests of python/kvlab/report: a temporary results folder, the page as elements, and the check that lives are whole."""

import contextlib
import html.parser
import io
import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "kvlab" / "report"), str(ROOT / "plots")]

import numpy as np  # noqa: E402

import lives  # noqa: E402
import page  # noqa: E402
import report  # noqa: E402

RATE = "trace.arrival.poisson.rate_per_s"


class Page(html.parser.HTMLParser):
    """Elements, the text of each script, the addresses that attributes name, and which elements were not closed in order."""

    EMPTY = ("meta", "link", "img", "br", "input")

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.addresses, self.open, self.wrong = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "action", "data", "poster", "srcset")]
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)

    def data(self):
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "data"))


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.top = Path(tempfile.mkdtemp(prefix="kvlab_report_"))
        self.addCleanup(shutil.rmtree, self.top)
        self.folder = self.top / "made_up"

    def write(self, *folders):
        """Writes the page with a stand-in for Plotly and reads it back."""
        with mock.patch.object(page, "library", lambda: "/* the library: </script> */"):
            path, _ = report.write(folders or [self.folder])
        return Page(path.read_text(encoding="utf-8"))

    def main(self, *arguments):
        heard = io.StringIO()
        with contextlib.redirect_stderr(heard), mock.patch.object(page, "library", lambda: ""):
            status = report.main([str(a) for a in arguments])
        return status, heard.getvalue()

    def assert_whole(self, own, rows):
        """Phases of completed requests add up to their time from arrival to the last token."""
        columns = own["columns"]
        total = sum(np.array(columns.get(f"{p}_us", [0] * len(rows))) for p in lives.PHASES)
        done = (rows.sort_index()["state"] == "completed").to_numpy()
        e2e = (np.round(rows.sort_index()["last_token_ns"] / 1000) - np.round(rows.sort_index()["arrival_ns"] / 1000)).to_numpy()
        self.assertGreater(done.sum(), 0)
        np.testing.assert_array_equal(total[done], e2e[done])
