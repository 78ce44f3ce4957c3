"""Timelines of a run, all replicas of a pool together: requests running and waiting, KV memory in use, tokens per second."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

import style
from groups import num_seeds, views
from load import slug

_COLUMNS = ["run", "replica", "time_ns", "running", "waiting", "swapped", "used_blocks", "cached_blocks", "free_blocks", "prompt_tokens", "output_tokens"]
_MAX_POINTS = 250
_MAX_OVERLAY = 4  # more lines than this cannot be told apart where they fluctuate


def of_run(timeline):
    """Sum over replicas at each sample time. Replicas may stop at different times: gauges keep their last value, token counts become 0."""
    wide = timeline.pivot_table(index="time_ns", columns="replica", values=_COLUMNS[3:], aggfunc="last")
    gauge = {c: wide[c].ffill().fillna(0).sum(axis=1) for c in _COLUMNS[3:9]}
    count = {c: wide[c].fillna(0).sum(axis=1) for c in _COLUMNS[9:]}
    table = pd.DataFrame({**gauge, **count}).reset_index()
    total = table["used_blocks"] + table["cached_blocks"] + table["free_blocks"]
    table["time_s"] = table["time_ns"] / 1e9
    table["waiting"] += table["swapped"]
    table["kv_used"] = 100 * table["used_blocks"] / total.where(total > 0)
    return thinned(table)


def thinned(table):
    """Bins of equally many samples, few enough to print: gauges averaged, tokens over the length of the bin."""
    every = -(-len(table) // _MAX_POINTS)
    bins = np.arange(len(table)) // every
    grouped = table.groupby(bins)
    result = grouped[["running", "waiting", "kv_used"]].mean()
    end = grouped["time_s"].last()
    result["time_s"] = end
    length = end.diff().where(end.index > 0, end.iloc[0] if len(end) else 0)
    for column in ("prompt_tokens", "output_tokens"):
        result[f"{column}_per_s"] = grouped[column].sum() / length.where(length > 0)
    return result


_ROWS = (("running", "Running\n(requests)"), ("waiting", "Waiting\n(requests)"), ("kv_used", "KV in use\n(%)"), ("output_tokens_per_s", "Output\n(tokens/s)"))


_TEN_TIMES = 10  # between the largest values of two files: each has a range of its own
_FEW = 10  # of requests, tokens or seconds: a range below it may be empty in a figure


@dataclass
class Line:
    """One run: its label, how many seeds it has, and a table per pool; {"": table} without pools."""

    text: str
    seeds: int
    tables: dict


def pools_of(results, run):
    """{pool: numbers of its replicas}: replicas are numbered pool by pool. {}: the run has one pool or none."""
    path = results.folder / "pools.csv"
    rows = pd.read_csv(path, dtype={"run": str}) if path.is_file() else pd.DataFrame(columns=["run"])
    rows, found, first = rows[rows["run"] == run], {}, 0
    if len(rows) < 2 or not {"pool", "replicas"} <= set(rows.columns):
        return {}
    for row in rows.to_dict("records"):
        found[str(row["pool"])] = range(first, first + int(row["replicas"]))
        first += int(row["replicas"])
    return found


def _tables(results, run, timeline):
    pools = pools_of(results, run)
    found = {pool: timeline[timeline["replica"].isin(replicas)] for pool, replicas in pools.items()}
    return {pool: of_run(rows) for pool, rows in found.items() if len(rows)} or {"": of_run(timeline)}


def _tops(tables):
    """The upper end of each panel and of time."""
    tops = {column: 1.05 * max(1, max(table[column].max() for table in tables)) for column, _ in _ROWS}
    return tops | {"kv_used": 102, "time_s": max(table["time_s"].max() for table in tables)}


def _ranges(files):
    """The ends that all files of the experiment have, so that these can be laid side by side, without those that differ tenfold between files;
    and the names of these. `files`: the tables of each."""
    tops = [_tops(tables) for tables in files]
    apart = [c for c in tops[0] if max(t[c] for t in tops) >= _TEN_TIMES * max(_FEW, min(t[c] for t in tops))] if tops else []
    return {c: max(t[c] for t in tops) for c in tops[0] if c not in apart} if tops else {}, apart


def _apart_note(apart):
    names = [label.split("\n")[0].lower() for column, label in _ROWS if column in apart] + (["time"] if "time_s" in apart else [])
    return f"Range of {' and '.join(names)} as this figure needs it: it differs tenfold between the timelines." if names else ""


def _label(line, pool, lines, named):
    return ", ".join(filter(None, (named(line.text) if len(lines) > 1 or not pool else "", pool)))


def _figure(lines, shared, title, note, folder, name, named):
    figure, axes = style.panels(name, len(_ROWS), 0.95, sharex=True)
    tops = _tops([table for line in lines for table in line.tables.values()]) | shared
    drawn = [(_label(line, pool, lines, named), table) for line in lines for pool, table in line.tables.items()]
    for i, (_, table) in enumerate(drawn):
        for axis, (column, _) in zip(axes, _ROWS):
            axis.plot(table["time_s"], table[column], **{**style.line(i, markers=False), "linewidth": 0.9})
    for axis, (column, label) in zip(axes, _ROWS):
        axis.set_ylabel(label)
        axis.set_ylim(0, tops[column])
        axis.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=3, steps=[1, 2, 2.5, 5, 10]))
    axes[-1].set_xlim(0, tops["time_s"])
    axes[-1].set_xlabel("Time (s)")
    figure.align_ylabels(axes)
    legend = (axes[0].lines, [text for text, _ in drawn]) if len(drawn) > 1 else ()
    return style.save(figure, folder, name, *legend, title=title, note=note)


def _lines(results, view, by_run):
    """The first seed of every line of a view."""
    first = [(text, rows["run"].iloc[0], num_seeds(rows)) for text, rows in view.lines]
    return [Line(text, seeds, _tables(results, run, by_run[run])) for text, run, seeds in first if run in by_run]


def _seeds(num):
    return f"The first of {num} seeds." if num > 1 else "n = 1 seed."


def _files(view, lines):
    """The lines of each figure: together where they are few, else one each."""
    num = sum(len(line.tables) for line in lines)
    return [lines] if 0 < num <= _MAX_OVERLAY else [[line] for line in lines]


def draw(results, folder, every=False):
    """The first seed of every line; one figure for a few lines, else one each. Pools of a run have lines of their own."""
    if results.timeline is None or results.summary is None or results.timeline.empty:
        return
    results.need("timeline", _COLUMNS, "the timeline")
    by_run = dict(list(results.timeline.groupby("run")))
    drawn = [(view, lines) for view in views(results, "timeline", every=every) for lines in _files(view, _lines(results, view, by_run))]
    shared, apart = _ranges([[t for line in lines for t in line.tables.values()] for _, lines in drawn])
    together = {view.suffix for view, lines in drawn if len(lines) > 1 or sum(v.suffix == view.suffix for v, _ in drawn) == 1}
    for view, lines in drawn:
        title = ", ".join(filter(None, (view.shown(lines[0].text) if len(lines) == 1 else "", view.title)))
        is_whole = view.suffix in together
        name = f"timeline{view.suffix}" if is_whole else f"timeline_{slug(lines[0].text)}{view.suffix}"
        notes = (_seeds(max(line.seeds for line in lines)), _apart_note(apart))
        note = view.footnote(*notes) if is_whole else " ".join(filter(None, (*notes, view.source)))
        yield _figure(lines, shared, title, note, folder, name, view.shown), view.note
