"""What `kvlab why` says of the runs of a folder: the first panel of the page (docs/why.md)."""

import json
import os
import subprocess
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_MOST_RUNS = 50  # with a panel of their own; of more runs one that is worth it
_SECONDS = 10  # for changes that are tried


def _program():
    """The command that starts the program; None where it is not built."""
    if (_PACKAGE / "data").is_dir():
        return [sys.executable, "-m", "kvlab"]
    built = _PACKAGE.parents[1] / "build" / "release" / "kvlab"
    return [str(built)] if built.is_file() else None


def _call(folder, *options):
    """The runs that the program explains, [] where it cannot."""
    done = subprocess.run(
        [*_program(), "why", str(folder), "--json", *options], capture_output=True, text=True, check=False, env={**os.environ, "KVLAB_RESULT_FILE": ""}
    )
    return json.loads(done.stdout) if done.returncode == 0 else {"best": "", "runs": []}


def of_folder(folder, num_runs, has_tries=True):
    """{"best": a line on the best of several, "runs": explanations}; the first one has what was tried. Both empty without the program."""
    if _program() is None:
        return {"best": "", "runs": []}
    chosen = _call(folder, "--seconds", str(_SECONDS)) if has_tries else _call(folder, "--no-try")
    others = _call(folder, "--all", "--no-try")["runs"] if 1 < num_runs <= _MOST_RUNS else []
    own = {run["run"] for run in chosen["runs"]}
    return {"best": chosen["best"], "runs": chosen["runs"] + [run for run in others if run["run"] not in own]}
