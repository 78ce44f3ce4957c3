"""What a KV policy costs and what it keeps: right answers over time per token, predicted by the simulator and measured by the engine (docs/engine.md).

Joins two results folders by recipe and budget: graded answers (docs/accuracy.md) and a serving experiment with `host: [sim, engine]`.
"""

import re

import numpy as np
import pandas as pd

import style
from fidelity import FAMILIES
from load import ResultsError

_BUDGET = "kv_policy.budget_tokens"
_METRICS = (("tpot_mean_ms", "Time per output token (ms)"), ("e2e_mean_ms", "End-to-end latency (ms)"))


def _answers(accuracy):
    """A row per (recipe, budget): exact_match_frac as the mean over tasks, resident_bytes_frac, family."""
    rows = accuracy.summary
    budget = rows[_BUDGET] if _BUDGET in rows.columns else pd.Series(np.nan, index=rows.index)
    if "kv_policy" in rows.columns:  # {recipe: snapkv, budget_tokens: 128} in one piece
        budget = budget.fillna(rows["kv_policy"].astype(str).str.extract(r"^\D\w* (\d+)$")[0].astype(float))
    rows = rows.assign(budget=budget.fillna(-1))
    tasks = rows.groupby(["recipe", "budget", "task"]).agg({"exact_match_frac": "mean", "resident_bytes_frac": "mean", "family": "first"})
    return tasks.groupby(level=["recipe", "budget"]).agg({"exact_match_frac": "mean", "resident_bytes_frac": "mean", "family": "first"})


def points_of(accuracy, serving):
    """A row per policy that both folders have: its answers, and each metric by host at the lowest load. ResultsError: there is none."""
    rows = serving.summary
    if "kv_policy" not in rows.columns:  # a lone policy, or {recipe: [a, b]} without a list around it
        rows = rows.assign(kv_policy=rows.get("kv_policy.recipe", "one policy"))
    if _BUDGET in serving.axes:
        budgets = rows[_BUDGET].map(lambda b: "" if pd.isna(b) else f" {b:g}")
        rows = rows.assign(kv_policy=rows["kv_policy"].astype(str) + budgets)
    loads = [a for a in serving.axes if a in ("load_frac", serving.rate_axis())]
    for axis in loads:
        rows = rows[rows[axis] == rows[axis].min()]
    others = [a for a in serving.axes if a not in ("host", "kv_policy", "kv_policy.recipe", _BUDGET, *loads)]
    for axis in others:
        rows = rows[rows[axis] == rows[axis].iloc[0]]
    answers = _answers(accuracy)
    points = []
    for policy, own in rows.groupby("kv_policy", sort=False):
        name = re.fullmatch(r"(\S+)(?: (\d+))?", str(policy))
        key = name and (name[1], float(name[2] or -1))
        if key not in answers.index or set(own["host"]) != {"sim", "engine"}:
            continue
        means = own.groupby("host")[[m for m, _ in _METRICS]].mean()
        points.append({"name": str(policy), **answers.loc[key].to_dict(), **{f"{m}_{host}": means.loc[host, m] for m, _ in _METRICS for host in means.index}})
    if not points:
        graded = [f"{name} {budget:g}" if budget >= 0 else name for name, budget in answers.index]
        raise ResultsError(f"no KV policy is in both folders, by recipe and budget: {accuracy.folder} grades {', '.join(graded)}; {serving.folder} serves "
                           f"{', '.join(map(str, rows['kv_policy'].unique()))}, which needs both hosts for each")
    return pd.DataFrame(points), {a: rows[a].iloc[0] for a in (*loads, *others)}


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
    low, high = axis.get_ylim()
    heights = [(y - low) / (high - low) for y in points["exact_match_frac"]]
    gap = min(7 / (axis.bbox.height * 72 / axis.figure.dpi), 1 / len(points))
    for p, height in zip(points.to_dict("records"), spread(heights, gap, 1)):
        end = max(p[f"{_METRICS[1][0]}_sim"], p[f"{_METRICS[1][0]}_engine"])
        axis.annotate(p["name"], (end, p["exact_match_frac"]), (1.04, height), textcoords="axes fraction", va="center", fontsize=6, color=FAMILIES[p["family"]],
                      arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "#909090", "shrinkA": 0, "shrinkB": 3}, annotation_clip=False)


def draw(accuracy, serving, folder):
    """Yields (name, note) of the figure."""
    points, setting = points_of(accuracy, serving)
    figure, axes = style.plt.subplots(1, 2, figsize=(style.PAGE_IN, 2.5), sharey=True)
    for axis, (metric, title) in zip(axes, _METRICS):
        for p in points.to_dict("records"):
            colour, size = FAMILIES[p["family"]], 3 + 9 * np.sqrt(p["resident_bytes_frac"])
            predicted, measured = p[f"{metric}_sim"], p[f"{metric}_engine"]
            axis.plot([predicted, measured], [p["exact_match_frac"]] * 2, color=colour, linewidth=0.8)
            axis.plot(measured, p["exact_match_frac"], "o", color=colour, markersize=size, markeredgewidth=0, alpha=0.85)
            axis.plot(predicted, p["exact_match_frac"], "o", color=colour, markersize=size, markerfacecolor="none", markeredgewidth=0.9)
        axis.set_xlabel(title)
        axis.set_xlim(left=0, right=1.25 * points[[f"{metric}_sim", f"{metric}_engine"]].to_numpy().max())
    axes[0].set_ylabel("Right answers (mean over tasks)")
    most = max(points["exact_match_frac"].max(), 0.01)
    axes[0].set_ylim(-0.04 * most, 1.08 * most)
    handles = [style.plt.Line2D([], [], marker="o", linestyle="none", color="#303030", markersize=5, markeredgewidth=0),
               style.plt.Line2D([], [], marker="o", linestyle="none", color="#303030", markersize=5, markerfacecolor="none"),
               style.plt.Line2D([], [], linestyle="none")]
    figure.tight_layout()
    _name_points(axes[1], points)
    note = ", ".join(f"{a.split('.')[-1]} {v}" for a, v in setting.items())
    yield style.save(figure, folder, "frontier", handles, ["measured in the engine", "predicted by the simulator", "area: KV bytes"], 3), f"at {note}" if note else ""
