"""Settings side by side: bars, or curves where one numeric axis has several values."""

from matplotlib.ticker import NullLocator

import bars
import load_curves
import settings
import style
from groups import View, combinations, cut_lines, lines_of, number_axis, only_lines, seeds_note
from load import axis_title, is_numeric
from metrics import where_found

_FEWEST = 4  # values of an axis from which they are a curve
_LOG_FROM = 20  # the largest of them over the smallest, from which the axis is logarithmic
_NAME = "comparison"


def curve_axis(results):
    """The only numeric axis that varies, where it has enough values for a curve; None: there is none, or a search or a load varies it."""
    varying = [a for a in results.axes if is_numeric(results.summary[a]) and results.summary[a].nunique() > 1]
    enough = [a for a in varying if results.summary[a].nunique() >= _FEWEST and a != results.rate_axis()]
    return enough[0] if len(enough) == 1 and len(varying) == 1 else None


def _panel(axis, lines, x, column, text, slo_ms):
    """Returns handles by label."""
    curves = [(label, load_curves.points(rows, x, column)) for label, rows in lines]
    curves = [(label, c) for label, c in curves if len(c)]
    most = max((c[:, 1].max() for _, c in curves), default=0)
    unit = 1000 if text.endswith("(ms)") and style.in_seconds(most) else 1
    order = [label for label, _ in lines]
    handles = {label: load_curves.draw_curve(axis, order.index(label), c / [1, unit, unit]) for label, c in curves}
    if curves:
        load_curves.scale_latency(axis, min(c[:, 1].min() for _, c in curves) / unit, most / unit)
    if axis.get_yscale() == "linear":
        axis.set_ylim(0, 1.1 * max((c[:, 1:].sum(axis=1).max() for _, c in curves), default=0) / unit or 1)
    metric = column.split("_")[0]
    if column.endswith("_p99_ms") and metric in slo_ms:
        style.limit(axis, "y", slo_ms[metric] / unit, "SLO")
    axis.set_ylabel(text.replace("(ms)", "(s)") if unit > 1 else text)
    return handles


def _x_axis(axis, x, values):
    if min(values) > 0 and max(values) >= _LOG_FROM * min(values):
        style.logarithmic(axis, "x", min(values), max(values))
        axis.set_xticks(values, [f"{v:,g}" for v in values])
        axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(axis_title(x))


def _curves(results, x, metrics, folder, every):
    rows, series = results.summary, [a for a in results.axes if a != x and results.summary[a].nunique(dropna=False) > 1]
    axis = number_axis(rows, series) if series else ""
    lines = only_lines(rows, lines_of(rows, series, results.name), results.axes, _NAME, axis) if series else [(results.name, rows)]
    view = cut_lines(View("", lines, _NAME, source=results.source, axis=axis), every, settings.of(_NAME).get("max_lines", style.MAX_LINES))
    columns = [c for c, _ in metrics]
    lines = [(label, where_found(results, part, columns)) for label, part in view.lines]
    num_rows = -(-len(metrics) // 2)
    figure, grid = style.grid(_NAME, num_rows, min(2, len(metrics)), style.COLUMN_IN, 1.35 * num_rows)
    for spare in grid.flat[len(metrics) :]:
        spare.set_visible(False)
    handles = {}
    for panel, (column, text) in zip(grid.flat, metrics):
        handles |= _panel(panel, lines, x, column, text, results.slo_ms)
        _x_axis(panel, x, sorted(rows[x].dropna().unique()))
    shown = [(handles[label], view.shown(label)) for label, _ in view.lines if label in handles]
    legend = ([h for h, _ in shown], [t for _, t in shown]) if len(shown) > 1 else ()
    note = view.footnote(seeds_note(part for _, own in view.lines for _, part in combinations(own, [x])))
    return style.save(figure, folder, _NAME, *legend, note=note), view.note


def draw(results, folder, every=False):
    """Yields (name, note) of the figures written."""
    if results.summary is None or results.is_hit_ratio:
        return
    results.need("summary", [column for column, _ in bars.NEEDED], "the comparison")
    x = curve_axis(results)
    metrics = [m for m in bars.metrics_of(results.summary) if results.summary[m[0]].notna().any()]
    if x is None or not metrics or isinstance(settings.of(_NAME).get("only"), list):
        yield from bars.draw(results, folder, every)
    else:
        yield _curves(results, x, metrics, folder, every)
