"""A results folder as tables, figures and a report."""

from __future__ import annotations

import difflib
import functools
import html
import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from kvlab import figures
from kvlab._kvlab import InputError

_TEXTS = {"run": str, "state": str, "session": str, "client": str, "class": str, "recipe": str}
_REMARKS = (("note", "note"), ("skipped", "skipped"), ("not_served", "not served"))


_HOW_TO_HAVE = {
    "timeline": "; write 'timeline_interval_ms' in the experiment to have one",
    "kept_steps": "; write 'output: {kept_steps: true}' in a replay experiment, or replay(output={\"kept_steps\": True}), to have one",
    "kept": "; write 'output: {kept: true}' in a replay experiment, or replay(output={\"kept\": True}), to have one",
}


_OF_LINES = ("kept", "kept_steps")  # in NAME.jsonl


def _names(folder: Path) -> list[str]:
    of_lines = [name for name in _OF_LINES if (folder / f"{name}.jsonl").is_file()]
    return sorted([*(p.stem for p in folder.glob("*.csv")), *of_lines])


def _read(folder: Path, name: str) -> pd.DataFrame:
    path = folder / f"{name}.csv"
    lines = folder / f"{name}.jsonl"
    if name in _OF_LINES and lines.is_file():
        return pd.DataFrame([json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()])
    if not path.is_file():
        there = ", ".join(_names(folder)) or "none"
        hint = _HOW_TO_HAVE.get(name, "")
        raise InputError(f"{path}: there is no such table; tables that there are: {there}{hint}")
    rows = pd.read_csv(path, dtype=_TEXTS, converters={"task": str}, low_memory=False)  # a task may be called NA
    for column in rows.columns:  # the mark of a text that a spreadsheet would compute (docs/results.md)
        if rows[column].dtype.kind not in "biuf":
            rows[column] = rows[column].map(lambda v: v[1:] if isinstance(v, str) and re.match("'+[=+@-]", v) else v)
    return rows


def _mapping(path: Path, read: Any) -> dict[str, Any]:
    return (read(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def _sweep_in(folder: Path) -> list[str]:
    """IDs of the runs of the newest sweep that began in a results folder."""
    return sorted(_mapping(folder / ".kvlab.json", json.loads).get("sweep", []))


class Folder:
    """The files that a results folder and the folder of one of its runs have in common."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._read: dict[str, pd.DataFrame] = {}

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """manifest.json: version, seeds, inputs with their hashes, the state of every run."""
        return _mapping(self.path / "manifest.json", json.loads)

    @functools.cached_property
    def resolved(self) -> dict[str, Any]:
        """resolved.yaml: what was run, with the values of `set` filled in."""
        return _mapping(self.path / "resolved.yaml", yaml.safe_load)

    @property
    def tables(self) -> list[str]:
        """Names of the tables that there are, for table()."""
        return _names(self.path)

    def table(self, name: str) -> pd.DataFrame:
        """A table by name, such as "search", "pools" or "kept" (docs/replay.md); columns and units: docs/results.md. InputError: there is
        none of this name."""
        if name not in self._read:
            self._read[name] = _read(self.path, name)
        return self._read[name]


class Run(Folder):
    """One run of a sweep: its own summary (a row per run, or per task and length), requests and timeline."""

    @property
    def id(self) -> str:
        return self.path.name

    summary = property(lambda self: self.table("summary"), doc="The row of the run without the sweep's axes.")
    requests = property(lambda self: self.table("requests"), doc="A row per request; times in ns.")
    timeline = property(lambda self: self.table("timeline"), doc="A row per sample; needs timeline_interval_ms.")

    def __repr__(self) -> str:
        return f"Run('{self.path}')"


class Results(Folder):
    """A results folder. Tables are read when they are asked for and kept; kvlab.load() reads a folder anew."""

    _sweep: list[str] | None = None  # runs of the sweep that these results are of; None: of whatever is in the folder

    @classmethod
    def of_newest_sweep(cls, path: str | PathLike[str]) -> Results:
        """Results that stay those of the sweep in the folder now, which is locked meanwhile: a table that is asked for after another sweep
        has begun there is an InputError."""
        results = cls(path)
        results._sweep = _sweep_in(results.path)
        results.manifest, results.resolved  # noqa: B018  # are kept
        if (results.path / "summary.csv").is_file():
            results.table("summary")
        return results

    def _require_same_sweep(self) -> None:
        if self._sweep is not None and _sweep_in(self.path) != self._sweep:
            raise InputError(f"{self.path}: another sweep was run there since: kvlab.load('{self.path}') reads what is there now")

    def table(self, name: str) -> pd.DataFrame:
        is_kept = name in self._read
        rows = super().table(name)
        if not is_kept:
            try:
                self._require_same_sweep()  # after reading: a sweep notes its runs before it replaces tables
            except InputError:
                del self._read[name]
                raise
        return rows

    table.__doc__ = Folder.table.__doc__

    def __repr__(self) -> str:
        return f"Results('{self.path}')"

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        names = self.tables
        table = self.table(names[0] if "summary" not in names else "summary").to_html(max_rows=20, index=False) if names else ""
        return f"<p><b>{html.escape(self.name)}</b>: {html.escape(str(self.path))}</p>{table}<ul>{notes}</ul>"

    @property
    def name(self) -> str:
        return self.manifest.get("experiment", self.path.name)

    @property
    def axes(self) -> list[str]:
        """Columns of the sweep's axes, first axis slowest."""
        columns = list(self.table("summary").columns)
        end = next((c for c in ("seed", "lookups") if c in columns), columns[0])
        return columns[1 : columns.index(end)]

    @property
    def summary(self) -> pd.DataFrame:
        """A row per run: run, axes, seed, metrics. Suffixes of columns are units: _ms, _per_s, _tokens, _frac (0 to 1)."""
        return self.table("summary")

    @functools.cached_property
    def requests(self) -> pd.DataFrame:
        """A row per request of every run: run, axes, seed, request, times in ns, tokens, state."""
        return self._with_axes("requests")

    @functools.cached_property
    def timeline(self) -> pd.DataFrame:
        """A row per sample of every run, with the axes. InputError: the experiment has no timeline_interval_ms."""
        return self._with_axes("timeline")

    @property
    def runs(self) -> list[str]:
        """IDs of the runs, in grid order."""
        return list(dict.fromkeys(self.summary["run"]))

    def run(self, id: str) -> Run:
        """One run, by its ID or the beginning of it. InputError: no run, or several, have it."""
        found = [run for run in self.runs if run.startswith(id)]
        if len(found) != 1:
            raise InputError(f"{self.path}: {len(found)} runs have an ID that begins with '{id}'; they are {', '.join(self.runs[:20])}")
        return Run(self.path / "runs" / found[0])

    @property
    def notes(self) -> list[str]:
        """Remarks of the runs, each once: assumptions, skipped rows, requests that were not served."""
        runs = self.manifest.get("runs", [])
        return list(dict.fromkeys(f"{title}: {run[key]}" for run in runs for key, title in _REMARKS if run.get(key)))

    def column(self, name: str, of: Sequence[str] | None = None) -> str:
        """The column of the summary that `name` means: its full name, or the last part of it ("rate_per_s") where no other has the same.
        InputError: no column, or several, have it."""
        columns = list(of if of is not None else self.summary.columns)
        if name in columns:
            return name
        found = [c for c in columns if c.endswith(f".{name}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"'{name}' is the last part of several columns: {', '.join(found)}; write one of them")
        near = difflib.get_close_matches(name, [*columns, *(c.split(".")[-1] for c in columns)], 1)
        raise InputError(f"{self.path}: no column '{name}'" + (f"; did you mean '{near[0]}'?" if near else f"; columns: {', '.join(columns)}"))

    def pivot(self, metric: str, x: str, series: str | None = None, where: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Means of a metric over seeds: a row per value of axis `x`, a column per value of axis `series` (None: one column).

        where: values of other axes to select. Names as in column().
        InputError: an axis that is named nowhere has several values, which would be mixed."""
        rows, x = self.summary, self.column(x)
        metric, series = self.column(metric), self.column(series) if series else None
        for name, value in (where or {}).items():
            rows = rows[rows[self.column(name)].isin(value if isinstance(value, (list, tuple, set)) else [value])]
        if rows.empty:
            raise InputError(f"{self.path}: no run has {dict(where or {})}")
        for axis in self.axes:
            if axis not in (x, series) and rows[axis].nunique(dropna=False) > 1 and not self._follows(rows, axis, x, series):
                values = ", ".join(map(str, rows[axis].drop_duplicates()[:6]))
                raise InputError(f"axis '{axis}' has several values ({values}): name it as x or series, or select one with where=")
        return rows.pivot_table(index=x, columns=series, values=metric, aggfunc="mean", sort=False, dropna=False) if series else (
            rows.groupby(x, sort=False, dropna=False)[[metric]].mean()
        )

    def figures(self, every: bool = False, settings: Mapping[str, Any] | None = None) -> figures.Figures:
        """Draws all figures of these results (docs/figures.md) and returns the paths of the PNGs; PDFs are beside them.

        every: all values of a long sweep. settings: by NAME.KEY, such as {"comparison.size": [7, 3], "all.names": {"vllm_v1": "vLLM"}}.
        InputError: a setting that no figure has."""
        self._require_same_sweep()
        return figures.draw(self.path, every, settings or {})

    def plot(self, name: str, **settings: Any) -> figures.Figures:
        """Draws one figure: a usual one by its name ("cdf_ttft"), or one of your own, which needs metric=, and takes statistic=, x=, series=,
        panel= (docs/figures.md). Returns the paths of its PNGs. InputError: there is no such figure or setting."""
        self._require_same_sweep()
        return figures.draw_one(self.path, name, settings)

    def report(self, other: Results | str | PathLike[str] | None = None, out: str | PathLike[str] | None = None) -> Path:
        """Writes one interactive HTML page of these results, or of two side by side, and returns its path."""
        self._require_same_sweep()
        second = other.path if isinstance(other, Results) else Path(fspath(other)) if other is not None else None
        return figures.report(self.path, second, Path(out) if out is not None else None)

    def _with_axes(self, name: str) -> pd.DataFrame:
        """A table with the axes and the seed after its run. A run that several points of the grid share has those of the first."""
        rows = self.table(name)
        own = [*self.axes, *(["seed"] if "seed" in self.summary else [])]
        told = self.summary[["run", *(c for c in own if c not in rows)]].drop_duplicates("run")
        merged = rows.merge(told, on="run", how="left")
        return merged[[*told.columns, *(c for c in rows.columns if c != "run")]]

    @staticmethod
    def _follows(rows: pd.DataFrame, axis: str, x: str, series: str | None) -> bool:
        """True where the axis has one value at each point of the others: it is a parameter of theirs."""
        return bool((rows.groupby([c for c in (x, series) if c], dropna=False)[axis].nunique(dropna=False) <= 1).all())
