"""Figures that the user defines: `figures: {NAME: {metric, statistic, x, series, panel, ...}}` (docs/figures.md)."""

import numpy as np
import pandas as pd

import bars
import cdf
import load_curves
import settings
import style
from groups import View, axis_named, cut_lines, combinations, lines_of, mean_and_interval, number_axis, only_lines, seeds_note
from load import ResultsError, axis_title, is_numeric, value_text
from metrics import STATISTICS, refuse_empty, title_of, usable
from names import shown

def defaults(results):
    """Data of the usual figures, so that one key of them may be changed: `throughput_latency_ttft: {statistic: p50}`."""
    rate = results.rate_axis() if results.summary is not None else None
    curves = {f"throughput_latency_{m}": {"metric": [m], "statistic": "p99", "x": "requests_per_s"} for m in ("ttft", "tpot", "e2e")} if rate else {}
    more = {"goodput": {"metric": ["goodput_per_s"], "x": rate}} if rate else {}
    return {**{f"cdf_{m}": {"metric": [m], "statistic": "cdf"} for m in cdf.TITLES}, "comparison": {"metric": ["ttft", "tpot", "goodput_per_s", "output_tokens_per_s"], "statistic": "p99"},
            **curves, **more}


def column_of(results, metric, statistic, place):
    """(column, its label) of a metric. ResultsError: there is none."""
    columns = usable(results.summary)
    refuse_empty(f"{place}.metric", metric, results.summary)
    if metric in columns:
        return metric, title_of(metric)
    column = f"{metric}_{statistic}_ms"
    if column not in columns:
        known = dict.fromkeys([c.rsplit("_", 2)[0] for c in columns if c.endswith("_ms") and c.rsplit("_", 2)[1] in STATISTICS])
        raise settings.unknown(f"{place}.metric", metric, [*known, *columns])
    return column, title_of(column)


class _Figure:
    """One figure: which rows, which axis runs along x, which has panels, and which lines."""

    def __init__(self, results, name, own):
        self.results, self.name, self.own, self.place = results, name, own, f"figures.{name}"
        self.statistic = settings.one_of(f"{self.place}.statistic", own.get("statistic", "p99"), (*STATISTICS, "cdf"))
        varying = [a for a in results.axes if results.summary[a].nunique(dropna=False) > 1]
        self.panel = axis_named(results.axes, own["panel"], f"{self.place}.panel") if own.get("panel") else None
        self.x = self._x_of(own.get("x") or (None if name == "comparison" or self.statistic == "cdf" else results.rate_axis()))
        rate = results.rate_axis() if self.x not in results.axes else None  # points of one line differ in the rate
        rest = [a for a in varying if a not in (self.x, self.panel) and (a != rate or self.x is None)]
        self.series = [axis_named(results.axes, a, f"{self.place}.series") for a in own["series"]] if "series" in own else rest

    def _x_of(self, x):
        """An axis, or a column that is none."""
        if x is None or (x in self.results.summary.columns and is_numeric(self.results.summary[x])):
            return x
        return axis_named(self.results.axes, x, f"{self.place}.x")

    def _lines(self):
        rows = self.results.summary
        axis = number_axis(rows, self.series)
        lines = only_lines(rows, lines_of(rows, self.series, self.results.name), self.results.axes, self.name, axis)
        if not lines:
            raise ResultsError(f"{self.place}.only: leaves no line")
        view = View("", lines, self.name, source=self.results.source, axis=axis)
        return cut_lines(view, False, self.own.get("max_lines", bars.MAX_BARS if self.x is None and self.statistic != "cdf" else style.MAX_LINES))

    def _panels(self, view):
        """(title, lines) of each panel."""
        if self.panel is None:
            return [("", view.lines)]
        rows = pd.concat([part for _, part in view.lines]).sort_index()
        panels = []
        for (value,), part in combinations(rows, [self.panel]):
            inside = [(text, own[own.index.isin(part.index)]) for text, own in view.lines]
            text = value_text(value)
            title = shown(text if isinstance(value, str) else f"{self.panel.split('.')[-1]} {text}", self.name)
            panels.append((title, [(t, own) for t, own in inside if len(own)]))
        return panels

    def _curve(self, rows, column):
        """x, mean and half the interval of each setting of the other axes, in the order of x, or of the sweep where x is a column."""
        others = [a for a in self.results.axes if a not in self.series and rows[a].nunique(dropna=False) > 1]
        if self.x in self.results.axes:
            return load_curves.points(rows, self.x, column)
        curve = [(part[self.x].mean(), *mean_and_interval(part[column])[:2]) for _, part in combinations(rows, others)]
        return np.array([p for p in curve if np.isfinite(p[:2]).all()]).reshape(-1, 3)

    def draw(self, folder):
        view, metrics = self._lines(), self.own["metric"]
        if self.statistic == "cdf":
            return self._draw_cdf(view, metrics, folder)
        columns = [column_of(self.results, metric, self.statistic, self.place) for metric in metrics]
        if self.x is None or (self.x in self.results.axes and not is_numeric(self.results.summary[self.x])):
            return self._draw_bars(view, columns, folder)
        if len(columns) > 1 and self.panel is not None:
            raise ResultsError(f"{self.place}: several metrics have panels of their own, so 'panel' has no place: give one metric")
        return self._draw_curves(view, columns, folder), view.note

    def _draw_cdf(self, view, metrics, folder):
        metric = settings.one_of(f"{self.place}.metric", metrics[0], tuple(cdf.TITLES))
        if len(metrics) > 1 or self.results.requests is None:
            raise ResultsError(f"{self.place}: 'statistic: cdf' takes one metric, and requests.csv of the runs")
        latency = cdf.latencies_ms(self.results.requests)
        panels = [(title, cdf.curves_of(lines, latency, metric)) for title, lines in self._panels(view)]
        order = [text for text, _ in view.lines]
        name = cdf.draw_panels(self.name, panels, order, metric, self.results.slo_ms.get(metric), folder, note=view.footnote(), named=view.shown)
        return name, view.note

    def _draw_bars(self, view, columns, folder):
        if self.panel is not None:
            raise ResultsError(f"{self.place}: bars have a panel for each metric, so 'panel' has no place")
        lines = [(view.shown(text), part) for text, part in view.lines]
        if self.x is not None:
            lines = [(", ".join([shown(value_text(v), self.name), *([text] if len(lines) > 1 else [])]), part) for text, rows in lines for (v,), part in combinations(rows, [self.x])]
        note = view.footnote(seeds_note(part for _, part in lines))
        return bars.draw_bars(self.name, lines, columns, self.results.slo_ms, folder, note=note), view.note

    def _draw_curves(self, view, columns, folder):
        panels = [(title, column, lines) for title, lines in self._panels(view) for column in columns]
        figure, axes = style.facets(self.name, len(panels), 1.8) if len(columns) == 1 else style.panels(self.name, len(columns), 1.5, sharex=True)
        order, handles, label = [text for text, _ in view.lines], {}, ""
        for axis, (title, (column, text), lines) in zip(axes, panels):
            curves = [(label, self._curve(rows, column)) for label, rows in lines]
            curves = [(label, c) for label, c in curves if len(c)]
            most = max((c[:, 1].max() for _, c in curves), default=0)
            unit = 1000 if text.endswith("(ms)") and style.in_seconds(most) else 1
            for label, c in curves:
                handles[label] = load_curves.draw_curve(axis, order.index(label), c / [1, unit, unit])
            if curves:
                load_curves.scale_latency(axis, min(c[:, 1].min() for _, c in curves) / unit, most / unit)
            if column.endswith("_p99_ms") and column.split("_")[0] in self.results.slo_ms:
                style.limit(axis, "y", self.results.slo_ms[column.split("_")[0]] / unit, "SLO")
            axis.set_ylabel(text.replace("(ms)", "(s)") if unit > 1 else text)
            style.panel_title(axis, title)
        x = axis_title(self.x) if self.x in self.results.axes else title_of(self.x)
        style.outer_labels(axes, x, axes[0].get_ylabel()) if len(columns) == 1 else axes[-1].set_xlabel(x)
        legend = ([handles[t] for t in order if t in handles], [view.shown(t) for t in order if t in handles]) if len(handles) > 1 else ()
        note = view.footnote(seeds_note(part for _, rows in view.lines for _, part in combinations(rows, [a for a in self.results.axes if a not in self.series])))
        return style.save(figure, folder, self.name, *legend, note=note)


def draw(results, folder, every=False):
    """Yields (name, note) of the figures written."""
    for name, own in settings.with_data(defaults(results)).items():
        if results.summary is None or not len(results.summary):
            raise ResultsError(f"figures.{name}: {results.folder} has no runs to draw it of")
        yield _Figure(results, name, own).draw(folder)
        settings.taken.add(name)
