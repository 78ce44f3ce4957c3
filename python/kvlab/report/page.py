"""Puts the page together: its style, its program, Plotly and the data, in one file that loads nothing."""

import html
import json
import re
from pathlib import Path

import whole_file
from load import ResultsError

_HERE = Path(__file__).resolve().parent
_VENDOR = _HERE / "vendor"  # plotly.min.js as the Python package plotly ships it, with its licence (MIT)
_SCRIPTS = ("base.js", "tables.js", "why.js", "figures.js", "timeline.js", "requests.js", "compare.js", "provenance.js", "main.js")
MOST_BYTES = 20_000_000
_MARK = b"<!-- written by kvlab report -->"


def library():
    """The text of plotly.min.js, which ships with the program."""
    for path in sorted(_VENDOR.glob("plotly-*.min.js")):
        return path.read_text(encoding="utf-8")
    raise ResultsError(f"{_VENDOR}: has no plotly-VERSION.min.js, which ships with kvlab: check it out or install kvlab again")


def _in_script(text):
    """Text that may be inside <script>: nothing in it ends the element or begins a comment."""
    return re.sub(r"<(?=/script|!--|script)", r"\\x3C", text, flags=re.IGNORECASE)


def _json(data):
    return (
        json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def content_of(data):
    """The bytes of the whole page."""
    program = "\n".join((_HERE / "page" / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    parts = {
        "TITLE": html.escape(data["title"]),
        "STYLE": (_HERE / "page" / "page.css").read_text(encoding="utf-8"),
        "LIBRARY": _in_script(library()),
        "DATA": _json(data),
        "PROGRAM": _in_script(program),
    }
    template = (_HERE / "page" / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda m: parts[m[1]], template).encode("utf-8")


def write(path, content):
    """Raises ResultsError where a file that is no page of ours would be replaced."""
    if path.is_symlink():
        raise ResultsError(f"{path}: is a symbolic link, and none is followed: move it away")
    if path.is_file() and _MARK not in path.read_bytes()[:400]:
        raise ResultsError(f"{path}: was not written by kvlab report: move it away, or name another file with --out")
    if path.is_dir():
        raise ResultsError(f"{path}: is a folder: name a file with --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file.replacing(path) as fresh:
        fresh.write_bytes(content)
