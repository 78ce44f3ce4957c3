"""Throughput-latency curves, goodput over offered load, and the attainment that a search saw."""

import numpy as np
import pandas as pd

import style
from groups import View, combinations, lines_of, mean_and_interval, number_axis, only_labels, seeds_note, views
from load import axis_title

_BEYOND = 2  # of the largest value found: the end of the axis of what a search tried
_JOINED = 0.15  # of that axis: probes further apart are not joined
_FAR_APART = 8  # the largest value found over the smallest, from which the axis is logarithmic
_SATURATED = 0.93  # of the rate offered: a throughput below it no longer grows with the rate
_SAME = 0.005  # of the largest value: curves that differ by less are one line to the eye
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end latency"}


def points(rows, axis, column):
    """One (rate, mean over seeds, half width of the interval) per swept value, in ascending order."""
    result = [(value, *mean_and_interval(part[column])[:2]) for value, part in rows.groupby(axis)]
    return np.array([p for p in result if np.isfinite(p[1])]).reshape(-1, 3)


def on_one_line(view, curves):
    """A sentence that names the lines that cover each other; "" for none. `curves`: (label, rows of x, y and more)."""
    groups, most = [], max((c[:, 1].max() for _, c in curves), default=0)
    for text, curve in curves:
        same = next((g for g in groups if g[0].shape == curve.shape and np.allclose(g[0][:, 0], curve[:, 0], rtol=_SAME)
                     and np.allclose(g[0][:, 1], curve[:, 1], rtol=_SAME, atol=_SAME * most)), None)
        if same is None:
            groups.append((curve, [view.shown(text)]))
        else:
            same[1].append(view.shown(text))
    several = [names for _, names in groups if len(names) > 1]
    return f"On one line: {'; '.join(', '.join(names) for names in several)}." if several else ""


def draw_curve(axis, index, curve):
    """`curve`: rows of x, y and half the interval; caps are drawn apart from the line's own marks. Returns the line for the legend."""
    x, y, half = np.asarray(curve).T
    (line,) = axis.plot(x, y, **style.line(index))
    sure = half > 0
    if sure.any():
        axis.errorbar(x[sure], y[sure], yerr=half[sure], fmt="none", ecolor=line.get_color(), elinewidth=0.6, capsize=1.8, capthick=0.6, zorder=1.8)
    return line


def _apart(curves, width):
    """The curves moved apart along x by a little, so that intervals at the same x do not overlap."""
    if not any((curve[:, 2] > 0).any() for curve in curves):
        return curves
    step = min(0.007, 0.03 / len(curves)) * width
    return [curve + [(i - (len(curves) - 1) / 2) * step, 0, 0] for i, curve in enumerate(curves)]


def _note(view, rate, *more):
    return view.footnote(seeds_note(part for _, rows in view.lines for _, part in combinations(rows, [rate])), *more)


def _finish(figure, view, handles, labels, note, folder):
    legend = (handles, [view.shown(text) for text in labels]) if len(labels) > 1 else ()
    return style.save(figure, folder, view.figure, *legend, title=view.title, note=note)


def scale_latency(axis, low, high):
    if low > 0 and high / low > 10:
        style.logarithmic(axis, "y", low, high)
    else:
        axis.set_ylim(bottom=0)


def _throughput_latency(results, view, metric, folder):
    rate = results.rate_axis()
    curves = [(text, points(rows, rate, f"{metric}_p99_ms"), dict(points(rows, rate, "requests_per_s")[:, :2])) for text, rows in view.lines]
    is_over_rate = rate.endswith("rate_per_s") and any(x[r] < _SATURATED * r for _, _, x in curves for r in x)
    curves = [(text, np.array([(r if is_over_rate else x[r], y, half) for r, y, half in ys if r in x]).reshape(-1, 3)) for text, ys, x in curves]
    curves = [c for c in curves if len(c[1])]
    if not curves:
        return None
    all_y = np.concatenate([c[:, 1] for _, c in curves])
    seconds = style.in_seconds(all_y.max())
    figure, (axis,) = style.panels(view.figure, 1, 1.8)
    unit = 1000 if seconds else 1
    handles = [draw_curve(axis, i, c / [1, unit, unit]) for i, (_, c) in enumerate(curves)]
    scale_latency(axis, all_y.min() / unit, all_y.max() / unit)
    axis.set_xlabel(axis_title(rate) if is_over_rate else "Throughput (requests/s)")
    axis.set_ylabel(f"P99 {LATENCIES[metric]} ({'s' if seconds else 'ms'})")
    if metric in results.slo_ms:
        style.limit(axis, "y", results.slo_ms[metric] / unit, "SLO")
    over = "Over the rate offered, for the throughput ends before it." if is_over_rate else ""
    return _finish(figure, view, handles, [text for text, _ in curves], _note(view, rate, over, on_one_line(view, curves)), folder)


def _goodput(results, view, folder):
    rate = results.rate_axis()
    curves = [(text, points(rows, rate, "goodput_per_s")) for text, rows in view.lines]
    curves = [(text, p) for text, p in curves if len(p)]
    if not curves:
        return None
    figure, (axis,) = style.panels(view.figure, 1, 1.8)
    most = max(p[:, 0].max() for _, p in curves)
    moved = _apart([p for _, p in curves], most)
    handles = [draw_curve(axis, i, p) for i, p in enumerate(moved)]
    top = max((p[:, 1] + p[:, 2]).max() for p in moved)
    if rate.endswith("rate_per_s"):  # as much as is offered: the most that there is
        axis.plot([0, most], [0, most], color="#909090", linewidth=0.7, linestyle=(0, (1, 1.5)), zorder=1.4)
        style.along(axis, 0.62 * min(top, most), "all that is offered")
    axis.set_xlim(0, 1.04 * most)
    axis.set_ylim(0, 1.1 * top or 1)
    axis.set_xlabel(axis_title(rate))
    axis.set_ylabel("Goodput (requests/s)")
    return _finish(figure, view, handles, [text for text, _ in curves], _note(view, rate, on_one_line(view, curves)), folder)


# By what a search varies: the column of the value found, the title of its axis, and its name.
SEARCHED = {
    "rate": ("search_rate_per_s", "Arrival rate (requests/s)", "rate"),
    "concurrency": ("search_concurrency", "Users", "number of users"),
    "replicas": ("search_replicas", "Replicas", "number of replicas"),
    "tp": ("search_tp", "Tensor-parallel degree", "degree"),
}


def _searched(results):
    """The quantity that every search varied; None: they differ, or there is none."""
    if results.search is None or results.search["slo_attainment_frac"].nunique() < 2:
        return None
    varied = results.search["varied"].unique() if "varied" in results.search else ["rate"]
    return varied[0] if len(varied) == 1 and SEARCHED[varied[0]][0] in results.summary else None


def in_pieces(x, y, most_gap):
    """x and y with a gap wherever neighbours are further apart than this: nothing was simulated between them."""
    apart = np.flatnonzero(np.diff(x) > most_gap) + 1
    return np.insert(np.asarray(x, dtype=float), apart, np.nan), np.insert(np.asarray(y, dtype=float), apart, np.nan)


def _attainment_end(results, view, varied, at):
    """The right end of the axis: twice the largest value found, or the last value tried if that is less."""
    found = pd.concat([rows[SEARCHED[varied][0]] for _, rows in view.lines]).max()
    tried = results.search[at].max()
    if np.isfinite(found):
        return min(tried, _BEYOND * found)
    lost = results.search.groupby(at)["slo_attainment_frac"].max() < 0.05  # what is beyond the last that attains shows nothing
    return lost[lost].index.min() if varied in ("rate", "concurrency") and lost.any() else tried


def _attainment_view(results, name):
    lines, axis_name = dict(lines_of(results.summary, results.axes, results.name)), number_axis(results.summary, results.axes)
    labels = only_labels(lines, name, axis_name)
    view = View("", [(label, lines[label]) for label in labels[: style.MAX_LINES]], name, source=results.source, axis=axis_name)
    view.left_out = tuple(labels[style.MAX_LINES :])
    return view


def _scale_attainment(axis, view, column, end):
    """From 0 to the end; logarithmic where the values found are far apart."""
    found = pd.concat([rows[column] for _, rows in view.lines])
    if found.max() > _FAR_APART * found.min() > 0:
        style.logarithmic(axis, "x", found.min(), end)
        axis.set_xlim(0.8 * found.min(), 1.1 * end)
    else:
        axis.set_xlim(0, 1.03 * end)


def _attainment(results, varied, folder):
    """Share of requests within the SLO at each value that a search tried; the one found is marked."""
    name = "attainment"
    column, title, noun = SEARCHED[varied]
    at = "value" if "value" in results.search else "rate_per_s"
    view = _attainment_view(results, name)
    figure, (axis,) = style.panels(name, 1, 1.8)
    end, handles = _attainment_end(results, view, varied, at), []
    most_gap = max(_JOINED * end, 1 if varied in ("replicas", "tp") else 0)
    for i, (_, rows) in enumerate(view.lines):
        probes = results.search[results.search["run"].isin(rows["run"])].groupby(at)["slo_attainment_frac"].mean()
        handles += axis.plot(*in_pieces(probes.index, 100 * probes, most_gap), **style.line(i))
        found = rows[column].mean()
        axis.plot([found, found], [0, 0], marker="|", markersize=9, markeredgewidth=1.4, color=handles[-1].get_color(), clip_on=False, linestyle="none", zorder=3)
    _scale_attainment(axis, view, column, end)
    axis.set_ylim(0, 102)
    if (results.search["attains"] == 1).any():
        style.limit(axis, "y", 100 * results.search_attainment, "wanted")
    axis.set_xlabel(title)
    axis.set_ylabel("Requests within the SLO (%)")
    note = f"Points are the search's probes, joined where they are near; a bar on the x axis is the {noun} found."
    return _finish(figure, view, handles, [text for text, _ in view.lines], view.footnote(note), folder)


def draw(results, folder, every=False):
    if results.summary is None or results.is_hit_ratio:
        return
    varied = _searched(results)
    if varied is not None:
        results.need("search", ["rate_per_s", "slo_attainment_frac", "attains"], "the attainment curve")
        yield _attainment(results, varied, folder), ""
    rate = results.rate_axis()
    if rate is None or results.summary[rate].nunique() < 2:
        return
    results.need("summary", ["requests_per_s", *(f"{m}_p99_ms" for m in LATENCIES)], "the throughput-latency curve")
    for metric in LATENCIES:
        for view in views(results, f"throughput_latency_{metric}", without=rate, every=every):
            yield _throughput_latency(results, view, metric, folder), view.note
    if "goodput_per_s" in results.summary and results.summary["goodput_per_s"].notna().any():
        for view in views(results, "goodput", without=rate, every=every):
            yield _goodput(results, view, folder), view.note
