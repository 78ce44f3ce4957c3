"""Writes one self-contained HTML page of a results folder, or of two side by side:

    python3 python/kvlab/report/report.py results/NAME [results/OTHER]

Reads result files only (docs/results.md). The page is described in docs/report.md."""

import argparse
import sys
import time
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
# The modules of the figures: in the data of an installed package, else at the top of the source tree.
_PLOTS = _PACKAGE / "data" / "plots"
sys.path.insert(0, str(_PLOTS if _PLOTS.is_dir() else _PACKAGE.parents[1] / "plots"))

import page  # noqa: E402
from load import ResultsError  # noqa: E402
from results_of import data_of  # noqa: E402

NAME = "report.html"
_MOST_REQUESTS = (100_000, 25_000, 2_000, 0)  # of a page: the next where it is too large


def write(folders, out=None, has_tries=False):
    """Writes the page and returns its path and the lines that say what was left out."""
    path = Path(out) if out else Path(folders[0]) / NAME
    for most_requests in _MOST_REQUESTS:
        data = data_of(folders, most_requests, has_tries)
        content = page.content_of(data)
        if len(content) <= page.MOST_BYTES:
            page.write(path, content)
            return path, data["left_out"]
    raise ResultsError(
        f"{path}: would have {len(content) / 1e6:.1f} MB without requests, and a page has at most {page.MOST_BYTES / 1e6:.0f}: "
        "report a part of the experiment, run with --set and --out"
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="kvlab report", description="Write one interactive HTML page of a results folder, or of two side by side. It needs no network."
    )
    parser.add_argument("folder", nargs="+", help="results/NAME, as written by kvlab run; at most two")
    parser.add_argument("--out", metavar="FILE.html", help=f"where to write the page; without it: {NAME} in the first folder")
    parser.add_argument("--no-try", action="store_true", help="do not try other settings for the panel on what makes a run slow")
    try:
        options = parser.parse_args(arguments)
        if len(options.folder) > 2:
            raise ResultsError(f"{len(options.folder)} folders: a page shows one or two; write a page for each pair")
        began = time.monotonic()
        path, left_out = write(options.folder, options.out, not options.no_try)
        for line in left_out:
            print(f"  left out: {line}", file=sys.stderr)
        print(f"kvlab: wrote {path} ({path.stat().st_size / 1e6:.1f} MB) in {time.monotonic() - began:.1f} s", file=sys.stderr)
        return 0
    except (ResultsError, OSError) as error:
        print(f"kvlab report: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
