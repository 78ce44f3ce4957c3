"""Latency CDFs: one figure per metric, one line per policy (requests of all its seeds pooled)."""

import numpy as np
import pandas as pd

import style
from groups import views

TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End-to-end latency"}
_COLUMNS = ["run", "arrival_ns", "first_token_ns", "last_token_ns", "output_tokens", "state"]
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
    if low > 0 and (high / low > 30 or most > 3 * usual):
        style.logarithmic(axis, "x", low, most)
        axis.set_xlim(low, most)
    else:
        axis.set_xlim(left=0)


def _figure(metric, curves, limit_ms, view, folder):
    figure, (axis,) = style.panels(1, 1.75)
    seconds = style.in_seconds(max(np.quantile(values, 0.9) for _, values in curves))
    scaled = [values / (1000 if seconds else 1) for _, values in curves]
    for i, values in enumerate(scaled):
        x, share = percentile_points(values)
        axis.plot(x, share, drawstyle="steps-post", **style.few_markers(i, len(curves), len(x)))
    _scale(axis, scaled)
    axis.set_ylim(0, 1.02)
    axis.set_xlabel(f"{TITLES[metric]} ({'s' if seconds else 'ms'})")
    axis.set_ylabel("Share of requests")
    legend = (list(axis.lines), [text for text, _ in curves]) if len(curves) > 1 else ()
    if limit_ms:
        style.limit(axis, "x", limit_ms / (1000 if seconds else 1), "SLO")
    return style.save(figure, folder, f"cdf_{metric}{view.suffix}", *legend, title=view.title, note=view.footnote())


def draw(results, folder, every=False):
    """Yields (name, note) of the figures written."""
    if results.requests is None or results.summary is None:
        return
    results.need("requests", _COLUMNS, "the latency CDF")
    latency = latencies_ms(results.requests)
    for view in views(results, every=every):
        for metric in TITLES:
            curves = [(text, latency.loc[latency["run"].isin(rows["run"]), metric].dropna()) for text, rows in view.lines]
            curves = [(text, values) for text, values in curves if len(values) > 0]
            if curves:
                yield _figure(metric, curves, results.slo_ms.get(metric), view, folder), view.note
