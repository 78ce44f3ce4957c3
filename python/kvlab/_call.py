"""One command of the program, and scripts of the package, with their errors as exceptions."""

from __future__ import annotations

import os
import subprocess
import sys

from kvlab import _data, _kvlab


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "no message")


def call(*arguments: str) -> str:
    """Runs a command of the program and returns what it prints. InputError: the message of exit status 2; RuntimeError: of another."""
    status, out, err = _kvlab.call([str(a) for a in arguments])
    if status == 0:
        return out
    message = _first_line(err).removeprefix("kvlab: ")
    raise _kvlab.InputError(message) if status == 2 else RuntimeError(message)


def environment() -> dict[str, str]:
    """The environment of the scripts: no window system, and no byte code among the installed files."""
    return {**os.environ, "MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "1"}


def run_script(name: str, *arguments: str) -> str:
    """Runs a script (_data.script) in a process of its own, so that its matplotlib settings stay there. Returns its stderr; errors as call()."""
    done = subprocess.run(
        [sys.executable, str(_data.script(name)), *map(str, arguments)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode == 0:
        return done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("kvlab")] or done.stderr.splitlines()[-1:]
    message = " ".join(said).removeprefix(f"kvlab {name}: ") or f"{name} ended with status {done.returncode}"
    raise _kvlab.InputError(message) if done.returncode == 2 else RuntimeError(message)
