"""The command `kvlab` of the package: the program's command line, figures after runs, `plot` and `report`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from kvlab import _data, _kvlab
from kvlab._call import environment

_HELP = """
Also, of the Python package:
  plot results/NAME           draw the figures again
  report results/NAME [OTHER] write one interactive HTML page of a result, or of two side by side"""
_WRITES_RESULTS = ("run", "merge", "validate", "reproduce")


def _script(name: str, arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, str(_data.script(name)), *arguments], env=environment(), check=False).returncode


def _converts_package(arguments: Sequence[str]) -> bool:
    words = " ".join(arguments).replace("=", " ").split()
    return words[:2] == ["profile", "convert"] and any(a == "--format" and b == "aisimulate" for a, b in zip(words, words[1:]))


def _without_format(arguments: Sequence[str]) -> list[str]:
    kept, skips = [], False
    for word in arguments:
        if not skips and not word.startswith("--format"):
            kept.append(word)
        skips = word == "--format"
    return kept


def _run_and_draw(arguments: Sequence[str]) -> int:
    """Runs a command that may write results, and draws their figures; the program names the folder in the file KVLAB_RESULT_FILE."""
    with tempfile.NamedTemporaryFile("r", prefix="kvlab.", suffix=".txt") as named:
        os.environ["KVLAB_RESULT_FILE"] = named.name
        try:
            status = _kvlab.main(list(arguments))
        finally:
            del os.environ["KVLAB_RESULT_FILE"]  # of this call alone
        folder = named.read().strip()
    if folder and os.environ.get("KVLAB_NO_FIGURES") != "1" and _script("plot", ["--", folder]) != 0:
        print(f"kvlab: figures are missing: kvlab plot '{folder}' tries again", file=sys.stderr)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line (default: that of this process) and returns its exit status: 0; 2 for errors that the user can mend, 1 for
    others, 130 after Ctrl-C. Output goes to the process's stdout and stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = arguments[0] if arguments else ""
    if command in ("plot", "report"):
        return _script(command, arguments[1:])
    if _converts_package(arguments):
        return _script("convert", _without_format(arguments[2:]))
    if command == "complete":
        os.environ["KVLAB_FRONT_DOOR"] = "plot report"
    sys.stdout.flush()
    earlier = signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in the program itself
    try:
        status = _run_and_draw(arguments) if command in _WRITES_RESULTS else _kvlab.main(arguments)
    finally:
        signal.signal(signal.SIGINT, earlier)
    if command in ("--help", "-h"):
        print(_HELP)
    return status
