"""Throughput-latency curves and goodput over offered load, where an arrival rate (or concurrency) is swept."""

import numpy as np

import style
from groups import combinations, mean_and_interval, seeds_note, views
from load import axis_title

_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end latency"}


def points(rows, rate_axis, column):
    """One (rate, mean over seeds, half width of the interval) per swept rate, in order of the rate."""
    result = [(rate, *mean_and_interval(part[column])[:2]) for rate, part in rows.groupby(rate_axis)]
    return np.array([p for p in result if np.isfinite(p[1])]).reshape(-1, 3)


def _curve(axis, index, x, y, y_half):
    look = style.line(index)
    drawn = axis.errorbar(x, y, yerr=y_half if np.any(y_half > 0) else None, elinewidth=0.6, capsize=2, capthick=0.6, **look)
    return drawn.lines[0]


def _note(view, rate):
    return view.footnote(seeds_note(part for _, rows in view.lines for _, part in combinations(rows, [rate])))


def _finish(figure, view, name, handles, texts, rate, folder):
    legend = (handles, texts) if len(texts) > 1 else ()
    return style.save(figure, folder, f"{name}{view.suffix}", *legend, title=view.title, note=_note(view, rate))


def _latency_axis(axis, metric, low, high, seconds):
    if low > 0 and high / low > 10:
        style.logarithmic(axis, "y", low, high)
    else:
        axis.set_ylim(bottom=0)
    axis.set_xlabel("Throughput (requests/s)")
    axis.set_ylabel(f"P99 {_LATENCIES[metric]} ({'s' if seconds else 'ms'})")


def _throughput_latency(results, view, metric, folder):
    rate = results.rate_axis()
    curves = [(text, points(rows, rate, f"{metric}_p99_ms"), dict(points(rows, rate, "requests_per_s")[:, :2])) for text, rows in view.lines]
    curves = [(text, np.array([p for p in y if p[0] in x]).reshape(-1, 3), x) for text, y, x in curves]
    curves = [c for c in curves if len(c[1])]
    if not curves:
        return None
    all_y = np.concatenate([y[:, 1] for _, y, _ in curves])
    seconds = style.in_seconds(all_y.max())
    figure, (axis,) = style.panels(1, 1.8)
    unit = 1000 if seconds else 1
    handles = [_curve(axis, i, [x[p] for p in y[:, 0]], y[:, 1] / unit, y[:, 2] / unit) for i, (_, y, x) in enumerate(curves)]
    _latency_axis(axis, metric, all_y.min() / unit, all_y.max() / unit, seconds)
    if metric in results.slo_ms:
        style.limit(axis, "y", results.slo_ms[metric] / unit, "SLO")
    return _finish(figure, view, f"throughput_latency_{metric}", handles, [text for text, _, _ in curves], rate, folder)


def _goodput(results, view, folder):
    rate = results.rate_axis()
    figure, (axis,) = style.panels(1, 1.8)
    handles, texts = [], []
    for i, (text, rows) in enumerate(view.lines):
        p = points(rows, rate, "goodput_per_s")
        if len(p):
            handles.append(_curve(axis, i, p[:, 0], p[:, 1], p[:, 2]))
            texts.append(text)
    if not handles:
        style.plt.close(figure)
        return None
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.set_xlabel(axis_title(rate))
    axis.set_ylabel("Goodput (requests/s)")
    return _finish(figure, view, "goodput", handles, texts, rate, folder)


def draw(results, folder, every=False):
    if results.summary is None or results.is_hit_ratio:
        return
    rate = results.rate_axis()
    if rate is None or results.summary[rate].nunique() < 2:
        return
    results.need("summary", ["requests_per_s", *(f"{m}_p99_ms" for m in _LATENCIES)], "the throughput-latency curve")
    for view in views(results, without=rate, every=every):
        for metric in _LATENCIES:
            name = _throughput_latency(results, view, metric, folder)
            if name:
                yield name, view.note
        if "goodput_per_s" in results.summary and results.summary["goodput_per_s"].notna().any():
            name = _goodput(results, view, folder)
            if name:
                yield name, view.note
