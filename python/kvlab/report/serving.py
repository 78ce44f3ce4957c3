"""Figures of simulated or served requests, from the same rows as those of plots/: CDFs, load curves, bars, search, attention kept."""

import numpy as np
import pandas as pd

import bars
import cdf
import fidelity
import hit_ratio
import load_curves
import serving_fidelity
import validation
from groups import cut_lines, combinations, lines_of, mean_and_interval, number_axis, seeds_note, views
from load import axis_title
from metrics import title_of
from naming import in_unit, named
from spec import axis, curve, figure, numbers, option, symbol

MOST_LINES = 60  # of one state of a figure
_MOST_BARS = 40  # of one state of the comparison
_POINTS = 300  # of a CDF
_NAME = "<extra>%{fullData.name}</extra>"
_LOG_FROM = 30  # factor between the fastest and the slowest requests
_BAR_COLUMNS = (
    "ttft_p50_ms ttft_p99_ms tpot_p50_ms tpot_p99_ms e2e_p50_ms e2e_p99_ms queueing_mean_ms goodput_per_s search_rate_per_s search_concurrency "
    "search_replicas search_tp slo_attainment_frac requests_per_s output_tokens_per_s prefix_hit_frac kv_used_mean_frac preemptions "
    "energy_j_per_token dollars_per_million_tokens"
).split()


def _named(lines, axis):
    """Lines with their names in place of their labels."""
    return list(zip(named((text for text, _ in lines), axis), (rows for _, rows in lines)))


def _views(results, without=None):
    found = [cut_lines(view, False, MOST_LINES) for view in views(results, "", without=without, every=True)]
    for view in found:
        view.lines, view.left_out = _named(view.lines, view.axis), named(view.left_out, view.axis)
    return found


def _all_lines(results):
    return _named(lines_of(results.summary, results.axes, results.name), number_axis(results.summary, results.axes))


def _seeds(parts):
    """seeds_note, at once where every part is one run."""
    parts = list(parts)
    return seeds_note(parts) if any(len(part) > 1 for part in parts) else ""


def _left_out(view):
    return f"Not drawn: {', '.join(view.left_out)}." if view.left_out else ""


def _steps(values):
    """Values in order and the share of values at or below each, at most _POINTS of them; both ends stay."""
    values = np.sort(values)
    keep = np.unique(np.linspace(0, len(values) - 1, min(len(values), _POINTS)).round().astype(int))
    return values[keep], (keep + 1) / len(values)


def _cdf_option(view, metric, latency, limit_ms):
    curves = [(text, values.to_numpy()) for text, values in cdf.curves_of(view.lines, latency, metric)]
    title, unit = in_unit(f"{cdf.TITLES[metric]} (ms)", max((np.quantile(values, 0.9) for _, values in curves), default=0))
    hover = f"%{{x:.4~g}} {'s' if unit > 1 else 'ms'}: %{{y:.1%}}{_NAME}"
    traces = [curve(text, *_steps(values / unit), mode="lines", shape="hv", hovertemplate=hover) for text, values in curves]
    spans = [np.quantile(values, (0.01, 0.99)) for _, values in curves]
    low, high = (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else (0, 0)
    limits = [("x", limit_ms / unit)] if limit_ms else []
    return option(
        traces,
        axis(title, low > 0 and high > _LOG_FROM * low),
        axis("Share of requests", range=[0, 1.01]),
        view.title,
        _left_out(view),
        limits,
    )


def cdfs(results):
    if results.requests is None or results.requests.empty:
        return []
    results.need("requests", cdf.COLUMNS, "the latency CDF")
    latency, shown = cdf.latencies_ms(results.requests), _views(results)
    return [
        figure(f"cdf_{m}", f"{title}: CDF", [_cdf_option(v, m, latency, results.slo_ms.get(m)) for v in shown], "values")
        for m, title in cdf.TITLES.items()
    ]


def _load_note(view, rate):
    return " ".join(filter(None, (_seeds(part for _, rows in view.lines for _, part in combinations(rows, [rate])), _left_out(view))))


def _load_curves(view, rate, metric):
    """(label, [(value of the load, mean, half of the interval)], requests/s) of each line, in ms."""
    for text, rows in view.lines:
        y, x = load_curves.points(rows, rate, metric), dict(load_curves.points(rows, rate, "requests_per_s")[:, :2])
        y = np.array([p for p in y if p[0] in x]).reshape(-1, 3)
        if len(y):
            yield text, y, [x[p] for p in y[:, 0]]


def _load_option(view, rate, metric, name, limit_ms, note):
    curves = list(_load_curves(view, rate, metric))
    title, unit = in_unit(f"{name} (ms)", max((y[:, 1].max() for _, y, _ in curves), default=0))
    hover = f"{axis_title(rate)} %{{customdata}}: %{{x:.4~g}} requests/s, %{{y:.4~g}} {'s' if unit > 1 else 'ms'}{_NAME}"
    traces = [curve(text, x, y[:, 1] / unit, y[:, 2] / unit, customdata=numbers(y[:, 0]), hovertemplate=hover) for text, y, x in curves]
    values = [v for t in traces for v in t["y"] if v]
    return option(
        traces,
        axis("Throughput (requests/s)"),
        axis(title, bool(values) and max(values) > 10 * min(values), rangemode="tozero"),
        ", ".join(filter(None, (name, view.title))),
        note,
        [("y", limit_ms / unit)] if limit_ms else [],
    )


def _goodput_option(view, rate, note):
    traces = []
    for text, rows in view.lines:
        p = load_curves.points(rows, rate, "goodput_per_s")
        if len(p):
            traces.append(curve(text, p[:, 0], p[:, 1], p[:, 2], hovertemplate="%{x}: %{y:.4~g} requests/s" + _NAME))
    top = [max((max(t["x"]) for t in traces), default=0)]
    if traces and rate.endswith("rate_per_s"):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "served = offered",
                "x": [0, *top],
                "y": [0, *top],
                "hoverinfo": "skip",
                "line": {"color": "#a0a0a0", "width": 1, "dash": "dot"},
            }
        )
    return option(traces, axis(axis_title(rate), rangemode="tozero"), axis("Goodput (requests/s)", rangemode="tozero"), view.title, note)


def load(results):
    """Latency over throughput, and goodput over the load, where a rate or concurrency is swept."""
    rate = results.rate_axis()
    if rate is None or results.summary[rate].nunique() < 2:
        return []
    shown, figures = [(v, _load_note(v, rate)) for v in _views(results, rate)], []
    for metric, name in load_curves.LATENCIES.items():
        options = [
            _load_option(v, rate, f"{metric}_{s}_ms", f"{s.upper()} {name}", results.slo_ms.get(metric), note)
            for s in ("p99", "p50")
            for v, note in shown
        ]
        figures.append(figure(f"throughput_latency_{metric}", f"Throughput and {name}", options, "of"))
    if "goodput_per_s" in results.summary and results.summary["goodput_per_s"].notna().any():
        figures.append(figure("goodput", "Goodput over load", [_goodput_option(v, rate, note) for v, note in shown], "values"))
    return figures


def _bar_option(lines, column, text, title, note):
    """`text`: what the bars are; `title`: of the figure's state."""
    stats = np.array([mean_and_interval(part[column])[:2] for _, part in lines])
    text, unit = in_unit(text, max((v for v in stats[:, 0] if np.isfinite(v)), default=0))
    stats = stats / unit
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": "",
        "y": [t for t, _ in lines],
        "x": numbers([s[0] for s in stats]),
        "hovertemplate": "%{y}: %{x:.5~g}" + _NAME,
        "error_x": {"type": "data", "array": numbers([s[1] for s in stats]), "thickness": 1, "width": 3},
        "marker": {"color": "#8aa6c8", "line": {"color": "#1b1b3a", "width": 0.6}},
    }
    if not any(s[1] > 0 for s in stats):
        del trace["error_x"]
    return option(
        [trace],
        axis(text, bars.is_logarithmic([s[0] for s in stats])),
        {"autorange": "reversed", "automargin": True, "type": "category"},
        ", ".join(filter(None, (text, title))),
        note,
    )


def _bar_views(results):
    """(title, lines): all lines in one figure, or one for each value of the numeric axes where there are many."""
    lines = _all_lines(results) if len(results.summary) else []
    if len(lines) <= _MOST_BARS:
        return [("", lines)] if lines else []
    return [(view.title, view.lines) for view in _views(results)]


def comparison(results):
    """Bars of any metric: every line of the experiment, means over seeds."""
    shown = _bar_views(results)
    first = dict(bars.metrics_of(results.summary))
    usable = [c for c in _BAR_COLUMNS if c in results.summary and pd.api.types.is_numeric_dtype(results.summary[c]) and results.summary[c].notna().any()]
    usable.sort(key=lambda c: list(first).index(c) if c in first else len(first))
    options = [
        _bar_option(lines, column, first.get(column, title_of(column)), title, _seeds(part for _, part in lines))
        for column in usable
        for title, lines in shown
    ]
    is_wide = any(len(lines) > 8 for _, lines in shown)
    return [figure("comparison", "Comparison", options, "metric", is_wide=is_wide)] if shown else []


def _probes(results):
    """Rows of search.csv that have an attainment. Older files have no `varied` and `value`: these searched for a rate."""
    found = results.search
    if "value" not in found:
        found = found.assign(varied="rate", value=found["rate_per_s"])
    return found[found["slo_attainment_frac"].notna()].sort_values("value")


def searches(results):
    """Every value that `search` tried, with the share of requests that met the SLO there: one state for each quantity that was varied."""
    if results.search is None:
        return []
    probes, options, nouns = _probes(results), [], []
    names = {row["run"]: text for text, rows in _all_lines(results) for row in rows.to_dict("records")}
    for varied, part in probes.groupby("varied", sort=False):
        _, title, noun = load_curves.SEARCHED[varied]
        lines = [(names[run], part[part["run"] == run]) for run in names]
        traces = [
            curve(text, rows["value"], rows["slo_attainment_frac"], hovertemplate="%{x:.4~g}: %{y:.2%}" + _NAME) for text, rows in lines if len(rows)
        ]
        options.append(option(traces, axis(title), axis("SLO attainment (share)", range=[0, 1.02]), title))
        nouns.append(noun)
    noun = nouns[0] if len(nouns) == 1 else "value"
    return [figure("search", f"Search: SLO attainment at every {noun} tried", options, "over")] if options else []


def attention_kept(results):
    if not results.measures_attention:
        return []
    points = serving_fidelity.points_of(results)
    looks, options, names = fidelity.looks_of(points), [], dict(zip(points["name"], named(points["name"])))
    for column, title in serving_fidelity.PANELS:
        shown = points[points[column].notna()]
        traces = [
            {
                "type": "scatter",
                "mode": "markers",
                "name": names[p["name"]],
                "x": [p[column]],
                "y": [p["attention_mass"]],
                "marker": {"color": looks[p["name"]]["color"], "symbol": symbol(looks[p["name"]]["marker"]), "size": 8},
            }
            for p in shown.to_dict("records")
        ]
        title = title.replace("\n", " ")
        options.append(option(traces, axis(title, rangemode="tozero"), axis("Attention mass kept (share)"), title))
    return [figure("serving_fidelity", "Throughput and attention kept", options, "load")]


def hit_ratios(results):
    if not results.is_hit_ratio:
        return []
    options = []
    for values, rows in combinations(results.summary, hit_ratio.others_of(results)):
        for column, unit in (("hit_frac", "blocks"), ("token_hit_frac", "tokens")):
            traces = []
            for policy, part in rows.groupby("block_cache", sort=False):
                points = hit_ratio.curve_of(part, column, hit_ratio.X)
                own = {"line": {"color": "black", "width": 2.4}, "marker": {"color": "black", "size": 5}} if policy == "belady" else {}
                traces.append(
                    curve(
                        "Belady (upper bound)" if own else named([policy])[0],
                        points[:, 0],
                        100 * points[:, 1],
                        hovertemplate="%{x} blocks: %{y:.2f} %" + _NAME,
                        **own,
                    )
                )
            name = ", ".join([f"% of {unit}", *map(str, values)])
            options.append(
                option(traces, axis("Cache size (blocks)", log=True), axis(f"Hit ratio (% of {unit})", rangemode="tozero"), name)
            )
    return [figure("hit_ratio", "Hit ratio over cache size", options, "of")]


def validations(results):
    """Simulated against real: errors per statistic, throughput over time."""
    figures, table = [], results.validation
    if table is not None and not table.empty and {"metric", "statistic", "diff_frac"} <= set(table.columns):
        traces = [
            {
                **curve(validation.NAMES.get(m, m), [0], 100 * rows["diff_frac"], hovertemplate="%{x}: %{y:+.2f} %" + _NAME),
                "mode": "markers",
                "x": rows["statistic"].tolist(),
            }
            for m, rows in table.groupby("metric", sort=False)
        ]
        real = "the engine" if validation.is_of_hosts(table) else "real"
        figures.append(
            figure(
                "validation_error",
                f"Simulated against {real}",
                [
                    option(
                        traces,
                        {"title": {"text": "Statistic"}, "type": "category"},
                        axis(f"Simulated / {real} − 1 (%)", zeroline=True),
                        note="" if validation.is_of_hosts(table) else validation.note_of(table),
                    )
                ],
            )
        )
    if results.throughput is not None and not results.throughput.empty:
        rows = results.throughput
        traces = [curve(n, rows["time_s"], rows[f"{n}_tokens_per_s"], mode="lines") for n in ("real", "simulated")]
        figures.append(
            figure(
                "validation_throughput",
                "Output over time, real and simulated",
                [option(traces, axis("Time (s)"), axis("Output (tokens/s)", rangemode="tozero"))],
            )
        )
    return figures


def figures_of(results):
    if results.is_hit_ratio:
        return hit_ratios(results)
    results.need("summary", [c for c, _ in bars.NEEDED], "the comparison")
    return [*comparison(results), *load(results), *cdfs(results), *searches(results), *attention_kept(results), *validations(results)]
