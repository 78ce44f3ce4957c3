"""Bars: policies side by side, with 95 % t-intervals over seeds."""

import numpy as np

import style
from groups import mean_and_interval, views

_METRICS = (("ttft_p99_ms", "P99 TTFT (ms)"), ("tpot_p99_ms", "P99 TPOT (ms)"), ("e2e_p99_ms", "P99 end-to-end (ms)"), ("output_tokens_per_s", "Output (tokens/s)"))
_GOODPUT = ("goodput_per_s", "Goodput (requests/s)")
_WIDE_LABEL = 16  # characters; longer labels leave room for one panel a row


def _metrics(summary):
    """Goodput takes the place of end-to-end latency where the experiment has an SLO."""
    if _GOODPUT[0] in summary and summary[_GOODPUT[0]].notna().any():
        return (_METRICS[0], _METRICS[1], _GOODPUT, _METRICS[3])
    return _METRICS


def _largest(values):
    """Of those that are numbers; 0: there are none."""
    return max((v for v in values if np.isfinite(v)), default=0)


def _bars(axis, stats):
    place = np.arange(len(stats))
    means = [s[0] for s in stats]
    halves = [s[1] for s in stats]
    axis.barh(place, means, height=0.68, color="#8aa6c8", edgecolor="#1b1b3a", linewidth=0.5)
    if any(h > 0 for h in halves):
        axis.errorbar(means, place, xerr=halves, fmt="none", ecolor="black", elinewidth=0.7, capsize=1.8, capthick=0.7)
    ends = [mean + half for mean, half in zip(means, halves)]
    for y, (mean, end) in enumerate(zip(means, ends)):
        if np.isfinite(mean):  # a bar beside one a hundred times longer cannot be seen
            axis.annotate(f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}", (end, y), (1.5, 0), textcoords="offset points", va="center", fontsize=5.5)
    axis.grid(axis="y", visible=False)
    axis.set_xlim(0, 1.25 * _largest(ends) or 1)
    axis.locator_params(axis="x", nbins=4)


def _in_seconds(stats, title):
    """Milliseconds read badly from ten seconds on."""
    if not title.endswith("(ms)") or _largest(s[0] for s in stats) < 10_000:
        return stats, title
    return [(s[0] / 1e3, s[1] / 1e3, s[2]) for s in stats], title.replace("(ms)", "(s)")


def _seeds_note(counts):
    low, high = min(counts, default=0), max(counts, default=0)
    if high < 2:
        return ""
    return f"Mean and 95 % t-interval over n = {high if low == high else f'{low} to {high}'} seeds"


def _figure(view, metrics, folder, name):
    labels = [text for text, _ in view.lines]
    columns = 2 if max(map(len, labels)) <= _WIDE_LABEL else 1
    rows = -(-len(metrics) // columns)
    if columns == 1:
        labels = [text.replace(", ", ",\n").replace(" (", "\n(") for text in labels]
    text_lines = max(label.count("\n") + 1 for label in labels)
    height = rows * (0.42 + (0.05 + 0.105 * text_lines) * len(labels))
    figure, axes = style.plt.subplots(rows, columns, figsize=(style.COLUMN_IN, height), sharey=True, squeeze=False)
    counts = []
    for axis, (column, title) in zip(axes.flat, metrics):
        stats = [mean_and_interval(part[column]) for _, part in view.lines]
        counts.extend(s[2] for s in stats if s[2] > 0)
        stats, title = _in_seconds(stats, title)
        _bars(axis, stats)
        axis.set_xlabel(title)
    for axis in axes.flat[len(metrics) :]:
        axis.set_visible(False)
    axes[0, 0].set_yticks(range(len(labels)), labels)
    axes[0, 0].invert_yaxis()
    note = _seeds_note(counts)
    if note:
        figure.set_figheight(height + 0.16)
        figure.suptitle(note, fontsize=7)
    return style.save(figure, folder, name)


def draw(results, folder, every=False):
    if results.summary is None or results.is_hit_ratio:
        return
    metrics = _metrics(results.summary)
    results.need("summary", [column for column, _ in metrics], "the bar comparison")
    metrics = [m for m in metrics if results.summary[m[0]].notna().any()]
    for view in views(results, every=every):
        if len(view.lines) > 1 and metrics:
            yield _figure(view, metrics, folder, f"comparison{view.suffix}"), view.note
