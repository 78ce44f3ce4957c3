"""Bars: policies side by side, with 95 % t-intervals over seeds."""

import textwrap

import numpy as np
from matplotlib.ticker import MaxNLocator

import settings
import style
from groups import mean_and_interval, seeds_note, views
from metrics import COSTS_OF_A_SEARCH, SEARCHED, title_of, where_found

_HIT = ("prefix_hit_frac", "Prefix hit ratio (share)")
_TTFT, _TPOT = ("ttft_p99_ms", "P99 TTFT (ms)"), ("tpot_p99_ms", "P99 TPOT (ms)")
_E2E, _OUTPUT = ("e2e_p99_ms", "P99 end-to-end (ms)"), ("output_tokens_per_s", "Output (tokens/s)")
_GOODPUT = ("goodput_per_s", "Goodput (requests/s)")
NEEDED = (_TTFT, _TPOT, _E2E, _OUTPUT)
_MAX_PANELS = 4
MAX_BARS = 24
_SHORT_LABEL = 16  # characters; with longer ones the panels are side by side across the page
_LABEL_WIDTH = 30
_LETTER_IN, _PANEL_IN = 0.055, 0.8  # width of a letter of a label, and of the narrowest panel
_LINE_IN = 0.105  # of text
_AROUND_IN = 0.5  # a panel's axis and its label
_TEXT_IN = {False: 0.5, True: 1.0}  # title and note of a figure; wide ones have longer names
_BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8}  # of the numbers: what crosses them stays legible
_LOG_FROM = 100  # bars that differ by this factor are on a logarithmic axis


def _has(summary, metric):
    return metric[0] in summary and summary[metric[0]].notna().any()


def metrics_of(summary):
    """The first four that the runs have: what was searched for, hits where these differ, tails, goodput (without an SLO end-to-end latency), output."""
    wanted = [_TTFT, _TPOT, _GOODPUT if _has(summary, _GOODPUT) else _E2E, _OUTPUT]
    if _HIT[0] in summary and summary[_HIT[0]].nunique() > 1:
        wanted.insert(0, _HIT)
    found = [m for m in SEARCHED if _has(summary, m)]
    if found:
        found += [(c, title_of(c)) for c in COSTS_OF_A_SEARCH if c in summary and summary[c].nunique() > 1]
    return (found + wanted)[:_MAX_PANELS]


def _largest(values):
    """The largest of those that are numbers; 0: there are none."""
    return max((v for v in values if np.isfinite(v)), default=0)


def is_logarithmic(means):
    """True where bars differ so much that the shortest cannot be seen beside the longest."""
    positive = [m for m in means if np.isfinite(m) and m > 0]
    return bool(positive) and max(positive) >= _LOG_FROM * min(positive)


def _scale(axis, means, ends):
    """The axis with room for the numbers after the bars."""
    if is_logarithmic(means):
        low, high = min(m for m in means if m > 0), _largest(ends)
        style.logarithmic(axis, "x", low, high, dense_below=1)
        low = 10 ** np.floor(np.log10(low) - 0.3)
        axis.set_xlim(low, high * (high / low) ** 0.35)
    else:
        axis.set_xlim(0, 1.45 * _largest(ends) or 1)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=3))


def _bars(axis, stats, empty):
    place = np.arange(len(stats))
    means, halves = [s[0] for s in stats], [s[1] for s in stats]
    if is_logarithmic(means):  # the length of a bar has no meaning there
        axis.plot(means, place, marker="o", linestyle="none", color="#1f5fa8", markersize=3.5, markeredgewidth=0)
    else:
        axis.barh(place, means, height=0.68, color="#8aa6c8", edgecolor="#1b1b3a", linewidth=0.5)
    sure = [i for i, h in enumerate(halves) if h > 0]
    if sure:
        axis.errorbar([means[i] for i in sure], sure, xerr=[halves[i] for i in sure], fmt="none", ecolor="black", elinewidth=0.7, capsize=1.8, capthick=0.7)
    ends = [mean + half for mean, half in zip(means, halves)]
    _scale(axis, means, ends)
    start = axis.get_xlim()[0]
    for y, (mean, end) in enumerate(zip(means, ends)):
        if np.isfinite(mean):
            axis.annotate(style.three_digits(mean), (max(end, start), y), (3, 0), textcoords="offset points", va="center", fontsize=6, bbox=_BEHIND)
        elif empty:
            axis.annotate(empty, (start, y), (3, 0), textcoords="offset points", va="center", fontsize=6, color="#606060")
    axis.grid(axis="y", visible=False)


def _clear_of(axis, at):
    """Moves the numbers that a vertical line at `at` would cross to its right."""
    scale, line = 72 / axis.figure.dpi, axis.transData.transform((at, 0))[0]
    renderer = axis.figure.canvas.get_renderer()
    for text in axis.texts:
        box = text.get_window_extent(renderer)
        if text.get_gid() is None and box.x0 - 3 < line < box.x1 + 3:
            text.set_position((text.get_position()[0] + (line + 4 - box.x0) * scale, 0))


def _in_seconds(stats, title):
    if not title.endswith("(ms)") or not style.in_seconds(_largest(s[0] for s in stats)):
        return stats, title, 1
    return [(s[0] / 1e3, s[1] / 1e3, s[2]) for s in stats], title.replace("(ms)", "(s)"), 1e3


def _labels(texts, is_wide):
    """As they are in narrow figures, broken at commas and brackets in wide ones."""
    width = _LABEL_WIDTH if is_wide else 1000
    return ["\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)) for text in texts]


def _is_wide(texts):
    return max(map(len, texts)) > _SHORT_LABEL


def _bar_in(labels):
    """Height of one bar with its label, in inches."""
    return 0.05 + _LINE_IN * max(label.count("\n") + 1 for label in labels)


def _columns(labels, num_metrics, width):
    """Panels side by side that have room beside the labels."""
    label_in = _LETTER_IN * max(len(line) for label in labels for line in label.split("\n"))
    return max(1, min(num_metrics, int((width - label_in) / _PANEL_IN)))


def _panels(name, texts, num_metrics):
    """Figure, axes and the height that a panel needs: two panels a row in a column, or all side by side across the page."""
    is_wide = _is_wide(texts)
    labels = _labels(texts, is_wide)
    wanted = num_metrics if is_wide else min(2, num_metrics)
    width = style.width_of(name, style.PAGE_IN if is_wide else style.COLUMN_IN)
    columns = min(wanted, _columns(labels, num_metrics, width)) if "size" in settings.of(name) else wanted
    rows = -(-num_metrics // columns)
    height = rows * (_AROUND_IN + _bar_in(labels) * len(labels))
    figure, axes = style.grid(name, rows, columns, width, height, sharey=True)
    axes[0, 0].set_yticks(range(len(labels)), labels)
    axes[0, 0].invert_yaxis()
    for axis in axes.flat[num_metrics:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:num_metrics]), _bar_in(labels) * len(labels)


def draw_bars(name, lines, metrics, slo_ms, folder, title="", note="", empty=""):
    """`lines`: (text, rows) of each bar from above; `metrics`: (column, title) of each panel; `empty`: the text in place of a bar without a number."""
    figure, axes, least_in = _panels(name, [text for text, _ in lines], len(metrics))
    limits = []
    for axis, (column, text) in zip(axes, metrics):
        stats, text, unit = _in_seconds([mean_and_interval(part[column]) for _, part in lines], text)
        _bars(axis, stats, empty)
        is_log = axis.get_xscale() == "log"
        axis.set_xlabel("\n".join(textwrap.wrap(text + (", log" if is_log else ""), 26)))
        metric = column.split("_")[0]
        if column.endswith("_p99_ms") and metric in slo_ms:
            style.limit(axis, "x", slo_ms[metric] / unit, "SLO")
            limits.append((axis, slo_ms[metric] / unit))

    def place():
        for axis, at in limits:
            _clear_of(axis, at)

    return style.save(figure, folder, name, title=title, note=note, place=place, least_in=least_in)


def _pages(view, num_metrics):
    """The lines in parts of which each is a figure less than a page high."""
    texts = [view.shown(text) for text, _ in view.lines]
    is_wide = _is_wide(texts)
    rows = 1 if is_wide else -(-num_metrics // 2)
    room_in = (style.PAGE_HEIGHT_IN - _TEXT_IN[is_wide]) / rows - _AROUND_IN
    most = max(1, min(MAX_BARS, int(room_in / _bar_in(_labels(texts, is_wide)))))
    return [view.lines[i : i + most] for i in range(0, len(view.lines), most)]


def draw(results, folder, every=False):
    if results.summary is None or results.is_hit_ratio:
        return
    results.need("summary", [column for column, _ in NEEDED], "the bar comparison")
    metrics = [m for m in metrics_of(results.summary) if results.summary[m[0]].notna().any()]
    columns = [column for column, _ in metrics]
    for view in views(results, "comparison", every=every, most=MAX_BARS):
        if len(view.lines) < 2 or not metrics:
            continue
        for i, lines in enumerate(_pages(view, len(metrics))):
            name = f"comparison{view.suffix}" + (f"_{i + 1}" if i else "")
            note = view.footnote(seeds_note(part for _, part in lines))
            yield draw_bars(name, [(view.shown(text), where_found(results, part, columns)) for text, part in lines], metrics, results.slo_ms, folder, view.title, note, "none" if results.search is not None else ""), view.note
