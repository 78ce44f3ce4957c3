"""Throughput-latency curves, goodput over offered load, and the attainment that a search saw."""

import numpy as np

import style
from groups import View, combinations, lines_of, mean_and_interval, number_axis, only_labels, seeds_note, views
from load import axis_title

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end latency"}


def points(rows, axis, column):
    """One (rate, mean over seeds, half width of the interval) per swept value, in ascending order."""
    result = [(value, *mean_and_interval(part[column])[:2]) for value, part in rows.groupby(axis)]
    return np.array([p for p in result if np.isfinite(p[1])]).reshape(-1, 3)


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
    curves = [(text, np.array([(x[r], y, half) for r, y, half in ys if r in x]).reshape(-1, 3)) for text, ys, x in curves]
    curves = [c for c in curves if len(c[1])]
    if not curves:
        return None
    all_y = np.concatenate([c[:, 1] for _, c in curves])
    seconds = style.in_seconds(all_y.max())
    figure, (axis,) = style.panels(view.figure, 1, 1.8)
    unit = 1000 if seconds else 1
    handles = [draw_curve(axis, i, c / [1, unit, unit]) for i, (_, c) in enumerate(curves)]
    scale_latency(axis, all_y.min() / unit, all_y.max() / unit)
    axis.set_xlabel("Throughput (requests/s)")
    axis.set_ylabel(f"P99 {LATENCIES[metric]} ({'s' if seconds else 'ms'})")
    if metric in results.slo_ms:
        style.limit(axis, "y", results.slo_ms[metric] / unit, "SLO")
    return _finish(figure, view, handles, [text for text, _ in curves], _note(view, rate), folder)


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
    return _finish(figure, view, handles, [text for text, _ in curves], _note(view, rate), folder)


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


def _attainment(results, varied, folder):
    """Share of requests within the SLO at each value that a search tried; the one found is marked."""
    name = "attainment"
    column, title, noun = SEARCHED[varied]
    at = "value" if "value" in results.search else "rate_per_s"
    lines = dict(lines_of(results.summary, results.axes, results.name))
    axis_name = number_axis(results.summary, results.axes)
    labels = only_labels(lines, name, axis_name)
    view = View("", [(label, lines[label]) for label in labels[: style.MAX_LINES]], name, source=results.source, axis=axis_name)
    view.left_out = tuple(labels[style.MAX_LINES :])
    figure, (axis,) = style.panels(name, 1, 1.8)
    handles = []
    for i, (_, rows) in enumerate(view.lines):
        probes = results.search[results.search["run"].isin(rows["run"])].groupby(at)["slo_attainment_frac"].mean()
        handles += axis.plot(probes.index, 100 * probes, **style.line(i))
        found = rows[column].mean()
        axis.plot([found, found], [0, 0], marker="|", markersize=9, markeredgewidth=1.4, color=handles[-1].get_color(), clip_on=False, linestyle="none", zorder=3)
    tried = results.search[results.search["attains"] == 1]["slo_attainment_frac"]
    lost = results.search.groupby(at)["slo_attainment_frac"].max() < 0.05
    falls = varied in ("rate", "concurrency")  # what is beyond the last that attains shows nothing
    axis.set_xlim(0, lost[lost].index.min() if falls and lost.any() else results.search[at].max())
    axis.set_ylim(0, 102)
    if len(tried):
        style.limit(axis, "y", 100 * results.search_attainment, "wanted")
    axis.set_xlabel(title)
    axis.set_ylabel("Requests within the SLO (%)")
    return _finish(figure, view, handles, [text for text, _ in view.lines], view.footnote(f"Points are the search's probes; a bar on the x axis is the {noun} found."), folder)


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
