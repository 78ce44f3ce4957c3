"""Timelines of a run, all replicas together: requests running and waiting, KV memory in use, tokens per second."""

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


def _ranges(tables):
    """The upper end of each panel and of time, one for all files of the experiment, so that these can be laid side by side."""
    tops = {column: 1.05 * max(1, max(table[column].max() for table in tables)) for column, _ in _ROWS}
    return tops | {"kv_used": 102, "time_s": max(table["time_s"].max() for table in tables)}


def _figure(series, tops, title, note, folder, name, named):
    figure, axes = style.panels(name, len(_ROWS), 0.95, sharex=True)
    for i, (_, table, _) in enumerate(series):
        for axis, (column, _) in zip(axes, _ROWS):
            axis.plot(table["time_s"], table[column], **{**style.line(i, markers=False), "linewidth": 0.9})
    for axis, (column, label) in zip(axes, _ROWS):
        axis.set_ylabel(label)
        axis.set_ylim(0, tops[column])
        axis.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=3, steps=[1, 2, 2.5, 5, 10]))
    axes[-1].set_xlim(0, tops["time_s"])
    axes[-1].set_xlabel("Time (s)")
    figure.align_ylabels(axes)
    legend = (axes[0].lines, [named(text) for text, _, _ in series]) if len(series) > 1 else ()
    return style.save(figure, folder, name, *legend, title=title, note=note)


def _series(view, by_run):
    """(text, table, seeds) of the first seed of every line."""
    first = [(text, rows["run"].iloc[0], num_seeds(rows)) for text, rows in view.lines]
    return [(text, of_run(by_run[run]), seeds) for text, run, seeds in first if run in by_run]


def _drawn_together(view, series, tops, folder):
    title = ", ".join(filter(None, (view.shown(series[0][0]) if len(series) == 1 else "", view.title)))
    seeds = max(n for _, _, n in series)
    return _figure(series, tops, title, view.footnote(_seeds(seeds)), folder, f"timeline{view.suffix}", view.shown)


def _seeds(num):
    return f"The first of {num} seeds." if num > 1 else "n = 1 seed."


def draw(results, folder, every=False):
    """The first seed of every line; one figure for a few lines, else one each."""
    if results.timeline is None or results.summary is None or results.timeline.empty:
        return
    results.need("timeline", _COLUMNS, "the timeline")
    by_run = dict(list(results.timeline.groupby("run")))
    drawn = [(view, _series(view, by_run)) for view in views(results, "timeline", every=every)]
    tables = [table for _, series in drawn for _, table, _ in series]
    tops = _ranges(tables) if tables else {}
    for view, series in drawn:
        if 0 < len(series) <= _MAX_OVERLAY:
            yield _drawn_together(view, series, tops, folder), view.note
            continue
        for line in series:
            title = ", ".join(filter(None, (view.shown(line[0]), view.title)))
            note = " ".join(filter(None, (_seeds(line[2]), view.source)))
            yield _figure([line], tops, title, note, folder, f"timeline_{slug(line[0])}{view.suffix}", view.shown), view.note
