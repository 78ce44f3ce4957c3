"""Simulated against real: error per statistic, throughput over time, and step durations by batch size."""

import numpy as np
from matplotlib.ticker import FuncFormatter

import style
from groups import only_labels
from load import is_numeric, label_of
from names import shown

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "End-to-end", "ttft_first120": "TTFT, first 120"}
EQUAL = "simulated equals measured"  # the meaning of a difference of 0
_SYMLOG_FROM = 100  # percent: errors from which the axis is logarithmic beyond 10 %
_REAL = {"color": "black", "linestyle": "-", "linewidth": 1.1}
_SIMULATED = {"color": "#b8500c", "linestyle": (0, (4, 1.2)), "linewidth": 1.1}


def is_of_hosts(table):
    """Runs of `host: [sim, engine]`, not of `kvlab validate`."""
    return "engine_run" in table.columns


def _count(values):
    """The number of requests in a column, or None where it is absent or empty: the largest, since some metrics leave requests out."""
    counts = values.dropna() if values is not None else ()
    return int(counts.max()) if len(counts) else None


def counts_of(table):
    """'n = 60 requests, measured and simulated': the number of requests that the statistics are of; "" where the file does not say."""
    real, simulated = (_count(table.get(f"{side}_requests")) for side in ("real", "simulated"))
    return f"n = {real:,} requests, measured and simulated" if real is not None and real == simulated else ", ".join(
        f"n = {n:,} {word} requests" for n, word in ((real, "measured"), (simulated, "simulated")) if n is not None)


def note_of(table):
    """The meaning of 0 % in a validation, and the number of requests."""
    return "; ".join(filter(None, (f"0 %: {EQUAL}", counts_of(table)))) + "."


def _whiskers_note(table):
    return "Whiskers are the range of the simulated runs." if (table["simulated_hi"] > table["simulated_lo"]).any() else ""


def _errors(table, folder):
    """A point per statistic with the range over the jittered runs; 0 is the real engine."""
    metrics = list(dict.fromkeys(table["metric"]))
    statistics = list(dict.fromkeys(table["statistic"]))
    figure, (axis,) = style.panels("validation_error", 1, 1.8)
    for i, metric in enumerate(metrics):
        rows = table[table["metric"] == metric]
        place = rows["statistic"].map(statistics.index) + (i - (len(metrics) - 1) / 2) * 0.16
        value = 100 * rows["diff_frac"]
        low = (value - 100 * (rows["simulated_lo"] / rows["real"] - 1)).clip(lower=0).fillna(0)
        high = (100 * (rows["simulated_hi"] / rows["real"] - 1) - value).clip(lower=0).fillna(0)
        look = style.line(i)
        axis.errorbar(place, value, yerr=[low, high], elinewidth=0.7, capsize=1.5, capthick=0.7, **{**look, "linestyle": "none"})
    axis.axhline(0, color="black", linewidth=0.6)
    axis.grid(axis="x", visible=False)
    axis.set_xticks(range(len(statistics)), [s if s == "mean" else s.upper() for s in statistics])
    axis.set_ylabel("Simulated / real − 1 (%)")
    return style.save(figure, folder, "validation_error", axis.containers, [NAMES.get(m, m) for m in metrics], note=f"{note_of(table)} {_whiskers_note(table)}".strip())


def _pairs_note(table):
    pairs = table.groupby(list(table.columns)[: list(table.columns).index("seed")] or ["metric"], dropna=False)["seed"].nunique()
    most = f"{pairs.min()} to {pairs.max()}" if pairs.min() < pairs.max() else f"{pairs.max()}"
    return f"0 %: {EQUAL}; n = {most} {'pair of runs' if most == '1' else 'pairs of runs'} for each."


def _hosts(table, folder):
    """Simulation against the engine, a panel per metric: a point per run pair and statistic; 0 is the engine."""
    axes = [c for c in list(table.columns)[: list(table.columns).index("seed")] if table[c].nunique(dropna=False) > 1]
    names = [c for c in axes if not is_numeric(table[c])]
    texts = table.apply(lambda row: label_of(row, names, alone=True) or "all runs", axis=1)
    labels, statistics, name = only_labels(dict.fromkeys(texts), "sim_vs_real"), list(dict.fromkeys(table["statistic"])), "sim_vs_real"
    figure, panels = style.panels(name, table["metric"].nunique(), 1.2, sharex=True)
    for axis, metric in zip(panels, dict.fromkeys(table["metric"])):
        for i, label in enumerate(labels):
            rows = table[(table["metric"] == metric) & (texts == label)]
            place = rows["statistic"].map(statistics.index) + (i - (len(labels) - 1) / 2) * 0.8 / max(1, len(labels))
            axis.plot(place, 100 * rows["diff_frac"], **style.point(i))
        axis.axhline(0, color="black", linewidth=0.6)
        axis.grid(axis="x", visible=False)
        own = 100 * table.loc[table["metric"] == metric, "diff_frac"].abs()
        if own.max() > _SYMLOG_FROM:
            axis.set_yscale("symlog", linthresh=10)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_ylabel(f"{NAMES.get(metric, metric)} (%)\nsim./engine − 1")
    panels[-1].set_xticks(range(len(statistics)), [s if s == "mean" else s.upper() for s in statistics])
    return style.save(figure, folder, name, panels[0].lines[: len(labels)], [shown(text, name) for text in labels], note=_pairs_note(table))


def _throughput(table, folder):
    figure, (axis,) = style.panels("validation_throughput", 1, 1.5)
    axis.plot(table["time_s"], table["real_tokens_per_s"], **_REAL)
    axis.plot(table["time_s"], table["simulated_tokens_per_s"], **_SIMULATED)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("Time (s)")
    axis.set_ylabel("Output (tokens/s)")
    return style.save(figure, folder, "validation_throughput", axis.lines, ["real", "simulated"])


def _steps(table, folder):
    table = table.sort_values("padded_batch")
    figure, (upper, lower) = style.panels("validation_steps", 2, 1.1, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
    upper.plot(table["padded_batch"], table["real_ms"], marker="o", markersize=5, markerfacecolor="none", **_REAL)
    upper.plot(table["padded_batch"], table["simulated_ms"], marker="s", markersize=2.5, **_SIMULATED)
    upper.set_ylim(bottom=0)
    upper.set_ylabel("Step (ms)")
    lower.axhline(0, color="black", linewidth=0.6)
    sizes = 6 + 30 * np.sqrt(table["count"] / max(1, table["count"].max()))  # area by number of real steps
    lower.scatter(table["padded_batch"], 100 * table["diff_frac"], s=sizes, marker="s", color=_SIMULATED["color"], linewidths=0)
    lower.set_ylabel("Difference (%)")
    lower.set_xlabel("Padded batch (requests)")
    figure.align_ylabels((upper, lower))
    return style.save(figure, folder, "validation_steps", upper.lines, ["real", "simulated"])


def draw(results, folder, every=False):
    kinds = (
        ("validation", ["metric", "statistic", "real", "simulated", "simulated_lo", "simulated_hi", "diff_frac"], _errors),
        ("throughput", ["time_s", "real_tokens_per_s", "simulated_tokens_per_s"], _throughput),
        ("validation_steps", ["padded_batch", "real_ms", "simulated_ms", "count", "diff_frac"], _steps),
    )
    if results.validation is not None and is_of_hosts(results.validation):
        kinds = (("validation", ["seed", "metric", "statistic", "diff_frac"], _hosts),)
    for name, columns, figure in kinds:
        table = getattr(results, name)
        if table is not None:
            results.need(name, columns, "the validation figure")
            if not table.empty:
                yield figure(table, folder), ""
