"""Timelines of a run, all replicas together: requests running and waiting, KV memory in use, tokens per second."""

import numpy as np
import pandas as pd

import style
from groups import views
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


def _figure(series, folder, name):
    rows = (("running", "Running\n(requests)"), ("waiting", "Waiting\n(requests)"), ("kv_used", "KV in use\n(%)"), ("output_tokens_per_s", "Output\n(tokens/s)"))
    figure, axes = style.panels(len(rows), 0.95, sharex=True)
    for i, (_, table) in enumerate(series):
        for axis, (column, _) in zip(axes, rows):
            axis.plot(table["time_s"], table[column], **{**style.line(i, markers=False), "linewidth": 0.9})
    for axis, (_, title) in zip(axes, rows):
        axis.set_ylabel(title)
        axis.set_ylim(bottom=0, top=None if axis.get_ylim()[1] >= 1 else 1)  # nobody waits: a flat line, not a scale of hundredths
    axes[2].set_ylim(0, 102)
    axes[-1].set_xlim(left=0)
    axes[-1].set_xlabel("Time (s)")
    figure.align_ylabels(axes)
    return style.save(figure, folder, name, *((axes[0].lines, [text for text, _ in series]) if len(series) > 1 else ()))


def draw(results, folder, every=False):
    """The first seed of every line; one figure for a few lines, else one each."""
    if results.timeline is None or results.summary is None or results.timeline.empty:
        return
    results.need("timeline", _COLUMNS, "the timeline")
    by_run = dict(list(results.timeline.groupby("run")))
    for view in views(results, every=every):
        series = [(text, rows["run"].iloc[0]) for text, rows in view.lines]
        series = [(text, of_run(by_run[run])) for text, run in series if run in by_run]
        if 0 < len(series) <= _MAX_OVERLAY:
            yield _figure(series, folder, f"timeline{view.suffix}"), view.note
            continue
        for text, table in series:
            yield _figure([(text, table)], folder, f"timeline_{slug(text)}{view.suffix}"), view.note
