"""What a KV policy costs and what it keeps: right answers over time per token, predicted by the simulator and measured by the engine (docs/engine.md).

Joins two results folders by recipe and budget: graded answers (docs/accuracy.md) and a serving experiment with `host: [sim, engine]`.
"""

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

import style
from accuracy import points_of as answers_of
from fidelity import FAMILIES
from groups import others_of
from load import ResultsError, value_text
from policies import full_name

_METRICS = (("tpot_mean_ms", "Time per output token (ms)"), ("e2e_mean_ms", "End-to-end latency (ms)"))


def _at_first(rows, axes):
    """The rows at the first value of each axis, and these values; NaN, where a run does not have the axis, is one."""
    chosen = {}
    for axis in axes:
        value = rows[axis].iloc[0]
        rows = rows[rows[axis].isna() if pd.isna(value) else rows[axis] == value]
        if not pd.isna(value):
            chosen[axis] = value
    return rows, chosen


def _served(serving):
    """A row per policy with its metrics by host at the lowest load, those measured on one host only, and the values of other axes drawn."""
    rows = serving.summary
    loads = [a for a in serving.axes if a in ("load_frac", serving.rate_axis())]
    lowest = {a: rows[a].min() for a in loads}
    for axis, load in lowest.items():
        rows = rows[rows[axis] == load]
    rows, others = _at_first(rows, [a for a in others_of(serving.summary, serving.axes) if a not in ("host", *loads)])
    metrics = [m for m, _ in _METRICS]
    means = rows.groupby(["policy", "budget", "host"], sort=False)[metrics].mean().unstack("host").reindex(columns=pd.MultiIndex.from_product([metrics, ("sim", "engine")]))
    means.columns = ["_".join(c) for c in means.columns]
    return means, lowest | others


def _note(setting, asked, served, answers):
    """Which values are drawn, and which policies are not."""
    notes = []
    for what, values in (("at", setting), ("answers of", asked)):
        notes += [f"{what} " + ", ".join(f"{a.split('.')[-1]} {value_text(v)}" for a, v in values.items())] if values else []
    for what, names in (("on one host only", served.loc[served.isna().any(axis=1), "name"]),
                        ("only graded", answers.loc[~answers["name"].isin(served["name"]), "name"]),
                        ("only served", served.loc[~served["name"].isin(answers["name"]), "name"])):
        notes += [f"{what}: {', '.join(names[:4])}" + (f" and {len(names) - 4} more" if len(names) > 4 else "")] if len(names) else []
    return "; ".join(notes)


def points_of(accuracy, serving):
    """A row per policy that both folders have: its answers, and each metric by host at the lowest load; and what the note says. ResultsError:
    there is none."""
    rows, asked = _at_first(accuracy.summary, others_of(accuracy.summary, accuracy.axes))
    answers = answers_of(rows)
    answers["name"] = [full_name(p, b) for p, b in zip(answers["name"], answers["budget"])]
    served, setting = _served(serving)
    served.insert(0, "name", [full_name(p, b) for p, b in served.index])
    points = served.dropna().merge(answers[["name", "exact_match_frac", "resident_bytes_frac", "family"]], on="name")
    if points.empty:
        raise ResultsError(f"no KV policy is in both folders, by recipe and budget: {accuracy.folder} grades {', '.join(answers['name'])}; {serving.folder} serves "
                           f"{', '.join(served['name'])}, which needs both hosts for each")
    return points, _note(setting, asked, served, answers)


def spread(heights, gap, top):
    """Ascending heights moved apart to at least `gap`, none above `top` where there is room."""
    places = []
    for height in heights:
        places.append(max(height, places[-1] + gap) if places else height)
    for i in range(len(places) - 1, -1, -1):
        limit = top if i == len(places) - 1 else places[i + 1] - gap
        places[i] = min(places[i], limit)
    return places


def _name_points(axis, points):
    """A column of names beside the panel, each with a line to its point."""
    points = points.sort_values("exact_match_frac", kind="stable")
    unit = 1000 if style.in_seconds(_most_ms(points, _METRICS[1][0])) else 1
    low, high = axis.get_ylim()
    heights = [(y - low) / (high - low) for y in points["exact_match_frac"]]
    gap = min(7 / (axis.bbox.height * 72 / axis.figure.dpi), 1 / len(points))
    for p, height in zip(points.to_dict("records"), spread(heights, gap, 1)):
        end = max(p[f"{_METRICS[1][0]}_sim"], p[f"{_METRICS[1][0]}_engine"]) / unit
        axis.annotate(p["name"], (end, p["exact_match_frac"]), (1.04, height), textcoords="axes fraction", va="center", fontsize=6, color=FAMILIES[p["family"]],
                      arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "#909090", "shrinkA": 0, "shrinkB": 3}, annotation_clip=False)


def _most_ms(points, metric):
    return points[[f"{metric}_sim", f"{metric}_engine"]].to_numpy().max()


def draw(accuracy, serving, folder):
    """Yields (name, note) of the figure."""
    points, note = points_of(accuracy, serving)
    figure, axes = style.plt.subplots(1, 2, figsize=(style.PAGE_IN, 2.5), sharey=True)
    for axis, (metric, title) in zip(axes, _METRICS):
        most_ms = _most_ms(points, metric)
        unit = 1000 if style.in_seconds(most_ms) else 1
        for p in points.to_dict("records"):
            colour, size = FAMILIES[p["family"]], 3 + 9 * np.sqrt(p["resident_bytes_frac"])
            predicted, measured = p[f"{metric}_sim"] / unit, p[f"{metric}_engine"] / unit
            axis.plot([predicted, measured], [p["exact_match_frac"]] * 2, color=colour, linewidth=0.8)
            axis.plot(measured, p["exact_match_frac"], "o", color=colour, markersize=size, markeredgewidth=0, alpha=0.85)
            axis.plot(predicted, p["exact_match_frac"], "o", color=colour, markersize=size, markerfacecolor="none", markeredgewidth=0.9)
        axis.set_xlabel(title.replace("(ms)", "(s)") if unit > 1 else title)
        axis.set_xlim(left=0, right=1.25 * most_ms / unit)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes[0].set_ylabel("Right answers (mean over tasks)")
    most = max(points["exact_match_frac"].max(), 0.01)
    axes[0].set_ylim(-0.04 * most, 1.08 * most)
    handles = [style.plt.Line2D([], [], marker="o", linestyle="none", color="#303030", markersize=5, markeredgewidth=0),
               style.plt.Line2D([], [], marker="o", linestyle="none", color="#303030", markersize=5, markerfacecolor="none"),
               style.plt.Line2D([], [], linestyle="none")]
    figure.tight_layout()
    _name_points(axes[1], points)
    yield style.save(figure, folder, "frontier", handles, ["measured in the engine", "predicted by the simulator", "area: KV bytes"], 3), note
