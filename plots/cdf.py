"""Latency CDFs: one figure per metric, one line per policy (requests of all its seeds pooled), and panels where rates are swept."""

import numpy as np
import pandas as pd

import style
from groups import panelled
from load_curves import on_one_line

TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End-to-end latency"}
COLUMNS = ["run", "arrival_ns", "first_token_ns", "last_token_ns", "output_tokens", "state"]
_MAX_POINTS = 2000


def latencies_ms(requests):
    """Per completed request and in ms: ttft and e2e from arrival, tpot where there are two tokens or more."""
    done = requests[requests["state"] == "completed"]
    gaps = (done["output_tokens"] - 1).where(done["output_tokens"] > 1)
    return pd.DataFrame({
        "run": done["run"],
        "ttft": (done["first_token_ns"] - done["arrival_ns"]) / 1e6,
        "e2e": (done["last_token_ns"] - done["arrival_ns"]) / 1e6,
        "tpot": (done["last_token_ns"] - done["first_token_ns"]) / 1e6 / gaps,
    })


def percentile_points(values):
    """Values in order and the share of values at or below each, thinned for the size of the file; both ends stay."""
    values = np.sort(np.asarray(values))
    share = np.arange(1, len(values) + 1) / len(values)
    if len(values) > _MAX_POINTS:
        keep = np.unique(np.linspace(0, len(values) - 1, _MAX_POINTS).round().astype(int))
        values, share = values[keep], share[keep]
    return values, share


def _scale(axis, curves):
    """Logarithmic where the middle 98 % of the requests span more than a factor of 30, or the slowest would take most of the axis."""
    low = min(np.quantile(c, 0.01) for c in curves)
    high = max(np.quantile(c, 0.99) for c in curves)
    most, usual = max(c.max() for c in curves), max(np.quantile(c, 0.95) for c in curves)
    if low > 0 and (high / low > 30 or most > 2 * usual):
        style.logarithmic(axis, "x", low, most, dense_below=500 if len(axis.figure.axes) == 1 else 50)
        axis.set_xlim(low / 1.08, most * 1.08)  # lines at the ends are whole
    else:
        axis.set_xlim(left=0)


def _num_requests(curves):
    counts = sorted({len(values) for values in curves})
    return f"n = {counts[0]:,}{f' to {counts[-1]:,}' if len(counts) > 1 else ''} requests per line."


def draw_panels(name, panels, order, metric, limit_ms, folder, title="", note="", named=str):
    """`panels`: (title, [(label, latencies in ms)]); `order`: labels as the legend has them; `named`: how it prints them."""
    figure, axes = style.facets(name, len(panels), 1.75)
    curves = [values for _, lines in panels for _, values in lines]
    unit = 1000 if style.in_seconds(max(np.quantile(values, 0.9) for values in curves)) else 1
    handles = {}
    for axis, (text, lines) in zip(axes, panels):
        for label, values in lines:
            x, share = percentile_points(values / unit)
            index = order.index(label)
            handles[label] = axis.plot(x, share, drawstyle="steps-post", **style.few_markers(index, len(order), len(x)))[0]
        style.panel_title(axis, text)
    _scale(axes[0], [values / unit for values in curves])
    axes[0].set_ylim(0, 1.02)
    style.outer_labels(axes, f"{TITLES[metric]} ({'s' if unit > 1 else 'ms'})", "Share of requests")
    for axis in axes if limit_ms else ():
        style.limit(axis, "x", limit_ms / unit, "SLO" if len(axes) == 1 else "")
    legend = ([handles[t] for t in order if t in handles], [named(t) for t in order if t in handles]) if len(handles) > 1 else ()
    dashed = "Dashed: limit of the SLO." if limit_ms and len(axes) > 1 else ""
    return style.save(figure, folder, name, *legend, title=title, note=" ".join(filter(None, (_num_requests(curves), dashed, note))))


def curves_of(lines, latency, metric):
    """(label, latencies in ms) of the lines that have any."""
    curves = [(text, latency.loc[latency["run"].isin(rows["run"]), metric].dropna()) for text, rows in lines]
    return [(text, values) for text, values in curves if len(values) > 0]


def _same_lines(view, panels):
    """A sentence that names the lines that cover each other in every panel; "" for none."""
    shares = np.linspace(0.02, 0.98, 25)
    found = {}
    for _, lines in panels:
        for text, values in lines:
            found.setdefault(text, []).append(np.column_stack([shares, np.quantile(values, shares), 0 * shares]))
    return on_one_line(view, [(text, np.concatenate(curves)) for text, curves in found.items() if len(curves) == len(panels)])


def draw(results, folder, every=False):
    """Yields (name, note) of the figures written."""
    if results.requests is None or results.summary is None:
        return
    results.need("requests", COLUMNS, "the latency CDF")
    latency = latencies_ms(results.requests)
    for metric in TITLES:
        for view in panelled(results, f"cdf_{metric}", every):
            panels = [(title, curves_of(lines, latency, metric)) for title, lines in view.panels or [("", view.lines)]]
            panels = [p for p in panels if p[1]]
            if panels:
                order = [text for text, _ in view.lines]
                yield draw_panels(view.figure, panels, order, metric, results.slo_ms.get(metric), folder, view.title, view.footnote(_same_lines(view, panels)), view.shown), view.note
