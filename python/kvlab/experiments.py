"""Runs experiments in this process."""

from __future__ import annotations

import operator
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Union

from kvlab import _kvlab, progress as progress_line
from kvlab._kvlab import InputError
from kvlab.results import Results
from kvlab.yaml_text import document, overrides

Experiment = Union[str, "PathLike[str]", Mapping[str, Any]]
_UNMET = 3  # exit status where a limit of `expect` is not met: a warning for each
_MARK = "# Written by kvlab.run() from a mapping; the next call replaces it.\n"


def _place_and_text(experiment: Mapping[str, Any], out: str) -> tuple[str, str]:
    """The file of an experiment given as a mapping, beside its results folder, and its text."""
    name = str(experiment.get("name") or Path(out).name or "experiment")
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise InputError(f"'name': '{name}' names a folder: letters, digits, '_', '-' and '.' only")
    path = Path(f"{out or Path('results') / name}.yaml")
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(_MARK):
        raise InputError(f"{path}: was not written by kvlab.run() and would be replaced: choose another 'name', or out=")
    return str(path), _MARK + document({"name": name, **experiment})


def file_of(experiment: Experiment, out: str) -> str:
    """The path or name of an experiment; one given as a mapping is written first, in one rename."""
    file, text = file_and_text(experiment, out)
    if text:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(f"{file}.new{os.getpid()}-{threading.get_ident()}")
        try:
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, file)
        finally:
            fresh.unlink(missing_ok=True)
    return file


def file_and_text(experiment: Experiment, out: str) -> tuple[str, str]:
    """The path or name of an experiment, and the text of one given as a mapping, which the program writes there once the folder is locked."""
    if isinstance(experiment, Mapping):
        return _place_and_text(experiment, out)
    if not isinstance(experiment, (str, PathLike)):
        raise TypeError(f"an experiment is a file, the name of one that ships, or a mapping, and not a {type(experiment).__name__}")
    if isinstance(experiment, str) and "\n" in experiment:
        raise InputError("the experiment is a text of several lines: pass the path of its file, or the mapping that yaml.safe_load() makes of it")
    return fspath(experiment), ""


def _threads(jobs: int | None) -> int:
    """Runs at a time; 0: one per core."""
    if jobs is None:
        return 0
    if operator.index(jobs) < 1:
        raise InputError(f"jobs={jobs}: at least 1, or None for one per core")
    return operator.index(jobs)


class PolicyTraceback(Exception):
    """The traceback of an exception in a policy, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0].rstrip()}"


def _with_traceback(error: Exception, tracebacks: Mapping[str, str]) -> Exception:
    """An error with the traceback in the policy as its cause, where a policy in Python made it. tracebacks: by the first line of the message."""
    lines = [line for line in tracebacks if line in str(error)]
    if lines:  # the longest: "bad 1" is in "bad 12" too
        error.policy_traceback = tracebacks[max(lines, key=len)]  # type: ignore[attr-defined]  # pickle keeps it, and drops the cause
        error.__cause__ = cause_of(error)
    return error


def cause_of(error: BaseException) -> PolicyTraceback | None:
    """The cause of an error that came from another process, where a policy in Python made it."""
    text = getattr(error, "policy_traceback", "")
    return PolicyTraceback(text) if text else None


def _raise_failure(status: int, results: Results, err: str, tracebacks: Mapping[str, str]) -> None:
    lines = [line.removeprefix("kvlab: ") for line in err.splitlines() if line.strip()]
    if status == 130:
        raise KeyboardInterrupt(lines[-1] if lines else "stopped")
    failed = [line for line in lines if re.match(r"run \d+ .*failed: ", line)] or lines or ["the sweep failed"]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    error = (InputError if status == 2 else RuntimeError)(failed[0] + more)
    error.results = results if results.path.is_dir() else None  # the complete runs
    raise _with_traceback(error, tracebacks)


def run(
    path: Experiment,
    set: Mapping[str, Any] | None = None,
    out: str | PathLike[str] | None = None,
    jobs: int | None = None,
    force: bool = False,
    quiet: bool = False,
    *,
    join: bool = False,
    shard: str | None = None,
    fast_forward: bool = True,
    progress: Callable[[int, int, int, float], None] | None = None,
) -> Results:
    """Runs an experiment and returns its results. Runs that are there already, with the same inputs, are not done again.

    path: a YAML file, the name of an experiment that ships ("quickstart"), or the experiment as a mapping. A mapping is written to
        results/NAME.yaml, beside its results, once the folder is locked; files that it names are looked for in the working directory.
    set: values by dotted key in place of the file's: {"seeds": 3, "trace.arrival.poisson.rate_per_s": [2, 4]}. A list is an axis.
    out: results folder; None: results/NAME in the working directory.
    jobs: runs at a time; None: the number of cores.
    force: does complete runs again.
    quiet: shows no progress. progress: called with (runs done, runs, requests simulated, seconds) instead, four times a second, from
        another thread.
    join: `out` may belong to another experiment. shard: "2/4", the second of four parts of the runs, into OUT.shards/2-of-4.
    fast_forward: False simulates every step; results are the same.

    One call at a time writes to a results folder: a second one, of another thread or process, is an InputError ("another kvlab is writing
    there"). The GIL is released meanwhile. Ctrl-C ends the runs in progress, keeps the complete ones and raises KeyboardInterrupt.
    InputError: the experiment, or one of its runs, has an error that the caller can mend. RuntimeError: any other failure. Both have
    `results`, those of the complete runs, where some runs failed, and the traceback in a policy in Python as their cause. Warnings of the
    program are Python warnings."""
    listener = progress or (None if quiet else progress_line.listener())
    folder = str(Path(out)) if out is not None else ""  # without a slash at the end
    file, text = file_and_text(path, folder)
    tracebacks: dict[str, str] = {}
    taken: list[Results] = []  # read while the folder is locked
    settings = (overrides(set), folder, _threads(jobs), force, join, shard or "", fast_forward)
    try:
        status, made, err = _kvlab.run(file, text, *settings, listener, tracebacks, lambda made: taken.append(Results.of_newest_sweep(made)))
    except InputError as error:
        raise _with_traceback(error, tracebacks)
    results = taken[0] if taken else Results(made)
    if status not in (0, _UNMET):
        _raise_failure(status, results, err, tracebacks)
    for line in err.splitlines():
        warnings.warn(line.removeprefix("kvlab: "), RuntimeWarning, stacklevel=2)
    return results


def sweep(
    path: Experiment,
    axes: Mapping[str, Iterable[Any]],
    set: Mapping[str, Any] | None = None,
    out: str | PathLike[str] | None = None,
    *,
    ray: bool = False,
    shards: int | None = None,
    **options: Any,
) -> Results:
    """Runs an experiment at every point of a grid: axes {"scheduler": ["vllm_v1", "sarathi"], "seed": [1, 2]}, by dotted key.

    The axes are added to those that the experiment has. ray: runs the sweep in `shards` parts (None: one per CPU of the cluster) as Ray
    tasks and joins them; all nodes must share the file system. Other arguments, errors and the result as run()."""
    settings = {**(set or {}), **{key: list(values) for key, values in axes.items()}}
    empty = [key for key in axes if not settings[key]]
    if empty:
        raise InputError(f"axis '{empty[0]}' has no values")
    if not ray:
        return run(path, settings, out, **options)
    from kvlab.ray_sweep import run_shards

    return run_shards(path, settings, out, shards, **options)


def _samples(samples: Any) -> Any:
    """Files as {NAME: {file: PATH}}; a mapping is taken as it is."""
    if isinstance(samples, Mapping):
        return samples
    files = [samples] if isinstance(samples, (str, PathLike)) else list(samples)
    named = {Path(file).stem: {"file": fspath(file)} for file in files}
    if len(named) < len(files):
        raise InputError("two samples have the same file name: pass a mapping {NAME: {'file': PATH}}")
    return named


def _policies(policies: Any, budget_tokens: Any) -> list[Any]:
    """Names as recipes, with the budgets where there are some; mappings are taken as they are."""
    given = [policies] if isinstance(policies, (str, Mapping)) else list(policies)
    found: list[Any] = []
    for policy in given:
        own = {"recipe": policy} if isinstance(policy, str) else policy
        needs_budget = budget_tokens is not None and isinstance(policy, str) and policy != "full"
        found.append({**own, "budget_tokens": budget_tokens} if needs_budget else own)
    if budget_tokens is not None and not any("budget_tokens" in policy for policy in found):
        raise InputError("budget_tokens= is of recipes given by name: write policies=['snapkv'], or {'recipe': 'snapkv', 'budget_tokens': 64}")
    return found


def replay(
    path: Experiment | None = None,
    *,
    samples: Any = None,
    policies: Any = None,
    budget_tokens: int | Iterable[int] | None = None,
    set: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
    name: str = "replay",
    **options: Any,
) -> Results:
    """Replays KV policies on recorded attention (docs/replay.md). The result has a row per policy and budget: attention mass kept, output
    error, bytes.

    path: an experiment with `host: replay`; or None, and then
    samples: path or paths of attention traces (safetensors), or a mapping as `samples:` in an experiment.
    policies: recipes by name, or mappings as `kv_policy:` in an experiment. budget_tokens: tokens kept, or read, per layer and KV head, of
        the recipes given by name, but "full"; several are an axis.
    output: further files, as `output:` in an experiment: {"kept": True} writes the positions that each KV head keeps of a prompt, which
        `.table("kept")` reads; {"kept_steps": True} those that it holds after each decode step in which tokens left, `.table("kept_steps")`.
    name: of the results folder. Other arguments, errors and the result as run()."""
    set = {**(set or {}), **{f"output.{key}": value for key, value in (output or {}).items()}}
    if path is not None:
        if samples is not None or policies is not None or budget_tokens is not None:
            raise InputError("replay() takes an experiment, or samples and policies")
        return run(path, set, **options)
    if samples is None or policies is None:
        raise InputError("replay() needs samples= and policies=, or an experiment")
    budgets = list(budget_tokens) if isinstance(budget_tokens, Iterable) else budget_tokens
    experiment = {"name": name, "host": "replay", "samples": _samples(samples), "kv_policy": _policies(policies, budgets)}
    return run(experiment, set, **options)


def load(path: str | PathLike[str]) -> Results:
    """Results that are there: of run(), or of `kvlab run`. InputError: the folder does not exist or has no table."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; kvlab.run() makes one")
    if not any(folder.glob("*.csv")) and (folder / "runs").is_dir():
        raise InputError(f"{folder}: no table yet: they are written once runs are complete, when the sweep ends or is stopped")
    if not any(folder.glob("*.csv")):
        raise InputError(f"{folder}: no results folder: it has no table")
    return Results(folder)
