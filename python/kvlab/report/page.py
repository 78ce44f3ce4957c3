"""Puts the page together: its style, its program, Plotly and the data, in one file that loads nothing."""

import html
import importlib.util
import json
import re
import sys
from pathlib import Path

from load import ResultsError

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
_LIBRARY = Path("plotly") / "package_data" / "plotly.min.js"
_IS_CHECKOUT = (_ROOT / "kvlab").is_file() and (_ROOT / "plots").is_dir()
_OWN = _ROOT / "build" / "plotly"  # of a checkout: where the command below installs it
_SCRIPTS = ("base.js", "tables.js", "figures.js", "timeline.js", "requests.js", "compare.js", "provenance.js", "main.js")
MOST_BYTES = 20_000_000
_MARK = b"<!-- written by kvlab report -->"


def _install():
    return f"{sys.executable} -m pip install --no-deps {f'--target {_OWN} ' if _IS_CHECKOUT else ''}plotly"


def library():
    """The text of plotly.min.js of the package plotly."""
    spec = importlib.util.find_spec("plotly")
    places = [_OWN, *(Path(p).parent for p in (spec.submodule_search_locations or () if spec else ()))]
    for place in places:
        path = place / _LIBRARY
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise ResultsError(f"the report needs plotly.min.js of the Python package plotly, which is not installed: {_install()}")


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
    if path.exists() and _MARK not in path.read_bytes()[:400]:
        raise ResultsError(f"{path}: was not written by kvlab report: move it away, or name another file with --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
