"""What a KV policy costs and what it keeps: right answers over time per token, predicted by the simulator and measured by the engine (docs/engine.md).

Joins two results folders by recipe and budget: graded answers (docs/accuracy.md) and a serving experiment with `host: [sim, engine]`.
"""

import numpy as np
import pandas as pd

import style
from fidelity import FAMILIES

_METRICS = (("tpot_mean_ms", "Time per output token (ms)"), ("e2e_mean_ms", "End-to-end latency (ms)"))


def _answers(accuracy):
    """A row per (recipe, budget): exact_match_frac as the mean over tasks, resident_bytes_frac, family."""
    rows = accuracy.summary
    key = "kv_policy.budget_tokens"
    budget = rows[key] if key in rows.columns else pd.Series(np.nan, index=rows.index)
    if "kv_policy" in rows.columns:  # {recipe: snapkv, budget_tokens: 128} in one piece
        budget = budget.fillna(rows["kv_policy"].astype(str).str.extract(r"^\D\w* (\d+)$")[0].astype(float))
    rows = rows.assign(budget=budget.fillna(-1))
    tasks = rows.groupby(["recipe", "budget", "task"]).agg({"exact_match_frac": "mean", "resident_bytes_frac": "mean", "family": "first"})
    return tasks.groupby(level=["recipe", "budget"]).agg({"exact_match_frac": "mean", "resident_bytes_frac": "mean", "family": "first"})


def points_of(accuracy, serving):
    """A row per policy that both folders have: its answers, and each metric by host at the lowest load."""
    rows = serving.summary
    loads = [a for a in serving.axes if a in ("load_frac", serving.rate_axis())]
    for axis in loads:
        rows = rows[rows[axis] == rows[axis].min()]
    others = [a for a in serving.axes if a not in ("host", "kv_policy", *loads)]
    for axis in others:
        rows = rows[rows[axis] == rows[axis].iloc[0]]
    answers = _answers(accuracy)
    points = []
    for policy, own in rows.groupby("kv_policy", sort=False):
        name, _, budget = str(policy).partition(" ")
        key = (name, float(budget) if budget else -1.0)
        if key not in answers.index or set(own["host"]) != {"sim", "engine"}:
            continue
        means = own.groupby("host")[[m for m, _ in _METRICS]].mean()
        points.append({"name": str(policy), **answers.loc[key].to_dict(), **{f"{m}_{host}": means.loc[host, m] for m, _ in _METRICS for host in means.index}})
    return pd.DataFrame(points), {a: rows[a].iloc[0] for a in (*loads, *others) if len(rows)}


def draw(accuracy, serving, folder):
    """Yields (name, note) of the figure."""
    points, setting = points_of(accuracy, serving)
    if points.empty:
        return
    figure, axes = style.plt.subplots(1, 2, figsize=(style.PAGE_IN, 2.5), sharey=True)
    for axis, (metric, title) in zip(axes, _METRICS):
        for p in points.to_dict("records"):
            colour, size = FAMILIES[p["family"]], 3 + 9 * np.sqrt(p["resident_bytes_frac"])
            predicted, measured = p[f"{metric}_sim"], p[f"{metric}_engine"]
            axis.plot([predicted, measured], [p["exact_match_frac"]] * 2, color=colour, linewidth=0.8)
            axis.plot(measured, p["exact_match_frac"], "o", color=colour, markersize=size, markeredgewidth=0, alpha=0.85)
            axis.plot(predicted, p["exact_match_frac"], "o", color=colour, markersize=size, markerfacecolor="none", markeredgewidth=0.9)
            axis.annotate(p["name"], (max(predicted, measured), p["exact_match_frac"]), (5, 5), textcoords="offset points", fontsize=6, color=colour)
        axis.set_xlabel(title)
        axis.set_xlim(left=0, right=1.25 * points[[f"{metric}_sim", f"{metric}_engine"]].to_numpy().max())
    axes[0].set_ylabel("Right answers (mean over tasks)")
    axes[0].set_ylim(0, 1.15 * points["exact_match_frac"].max())
    handles = [style.plt.Line2D([], [], marker="o", linestyle="none", color="#303030", markersize=5, markeredgewidth=0),
               style.plt.Line2D([], [], marker="o", linestyle="none", color="#303030", markersize=5, markerfacecolor="none"),
               style.plt.Line2D([], [], linestyle="none")]
    note = ", ".join(f"{a.split('.')[-1]} {v}" for a, v in setting.items())
    yield style.save(figure, folder, "frontier", handles, ["measured in the engine", "predicted by the simulator", "area: KV bytes"], 3), f"at {note}" if note else ""
