"""A sweep as Ray tasks: each does one shard of the runs (docs/sweeps.md), and the shards are joined here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from kvlab._call import call
from kvlab._kvlab import InputError
from kvlab.experiments import Experiment, cause_of, file_of, run
from kvlab.policy_transfer import Sent, packed, unpack
from kvlab.results import Results
from kvlab.yaml_text import overrides


def run_shard(folder: str, file: str, settings: Mapping[str, Any], out: str, shard: str, options: Mapping[str, Any], policies: list[Sent]) -> str:
    """Does one shard in the working directory `folder`, where relative paths of the experiment are looked for. Returns its results folder.

    policies: those in Python that the experiment may name."""
    os.chdir(folder)
    unpack(policies)
    return str(run(file, settings, out or None, shard=shard, **{"jobs": 1, "quiet": True, **options}).path)


def run_shards(path: Experiment, settings: Mapping[str, Any], out: str | PathLike[str] | None, shards: int | None, **options: Any) -> Results:
    """Starts a task per shard, waits for all, and merges. Errors of a shard are raised; complete runs are kept, so that the same call goes on."""
    import ray

    if not ray.is_initialized():
        ray.init()
    here, folder = os.getcwd(), str(Path(out)) if out is not None else ""
    file, count = file_of(path, folder), shards or max(1, int(ray.cluster_resources().get("CPU", 1)))
    task = ray.remote(run_shard)
    policies = packed()
    tasks = [task.remote(here, file, settings, folder, f"{i}/{count}", options, policies) for i in range(1, count + 1)]
    try:
        parts = ray.get(tasks)
    except KeyboardInterrupt:
        for each in tasks:
            ray.cancel(each)
        raise
    except (InputError, RuntimeError) as error:  # Ray's, whose text is a traceback; the task's own is its cause
        own = getattr(error, "cause", None) or error
        raise own from cause_of(own)
    arguments = [argument for text in overrides(settings) for argument in ("--set", text)]
    call("merge", file, *arguments, *(("--out", folder) if folder else ()))
    return Results(Path(parts[0]).parent.with_suffix(""))
