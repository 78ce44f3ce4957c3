"""Answers of a model under KV policies: right answers over bytes, and task by task (docs/accuracy.md)."""

import numpy as np
import pandas as pd

import setting
import style
from fidelity import FAMILIES, _label_front, _legend, _looks, _name_rows, pareto
from groups import at_budgets, parts_of, sentence

_SUMMARY = "recipe budget_tokens task length num_answers exact_match_frac kl_to_full bits_per_byte resident_bytes_frac full_exact_match_frac family".split()
_ROW_IN = 0.125


def points_of(rows):
    """A row per policy and budget: exact_match_frac and full_exact_match_frac as the mean over tasks (lengths and seeds pooled by answers), the
    other numbers over answers, each with the numbers of its row (KL per token, then); `by_task` holds the shares task by task."""
    shares = ["exact_match_frac", "full_exact_match_frac"]
    points = []
    for (policy, budget), own in rows.groupby(["policy", "budget"], sort=False):
        mean = {c: np.average(own[c], weights=own["num_answers"]) for c in ("kl_to_full", "resident_bytes_frac")}
        tasks = own.groupby("task", sort=False)[["num_answers", *shares]].apply(lambda t: pd.Series({c: np.average(t[c], weights=t["num_answers"]) for c in shares}))
        points.append({"name": policy, "budget": budget, "family": own["family"].iloc[0], **mean, **tasks.mean().to_dict(), "by_task": tasks["exact_match_frac"],
                       "host_bytes_frac": 0.0, "disk_bytes_frac": 0.0})
    table = pd.DataFrame(points)
    return table.sort_values("family", key=lambda f: f.map(list(FAMILIES).index), kind="stable", ignore_index=True)


def _over_bytes(points, model, folder, name):
    looks = _looks(points)
    figure, (left, right) = style.plt.subplots(1, 2, figsize=(style.PAGE_IN, 2.9))
    for policy, rows in points.groupby("name", sort=False):
        rows = rows.sort_values("resident_bytes_frac", kind="stable")
        for axis, y in ((left, "exact_match_frac"), (right, "kl_to_full")):
            shown = rows if y == "exact_match_frac" else rows[rows[y] > 1e-6]
            axis.plot(shown["resident_bytes_frac"], shown[y], linewidth=0.7, alpha=0.75, markersize=3.2, markeredgewidth=0, linestyle="-", **looks[policy])
    left.axhline(points["full_exact_match_frac"].max(), color="black", linewidth=0.6, linestyle=":")
    left.set_ylabel("Right answers (mean over tasks)" + (f"\nof the model {model}" if model else ""))
    left.set_ylim(bottom=-0.02 * left.get_ylim()[1])  # marks at 0 are whole
    lossy = points[points["kl_to_full"] > 1e-6]
    if len(lossy):
        style.logarithmic(right, "y", lossy["kl_to_full"].min(), lossy["kl_to_full"].max())
        right.set_ylim(bottom=0.35 * lossy["kl_to_full"].min())
    right.set_ylabel("KL to the full cache\n(nats per token, mean over answers)")
    for axis in (left, right):
        style.logarithmic(axis, "x", points["resident_bytes_frac"].min(), points["resident_bytes_frac"].max())
        axis.set_xlim(points["resident_bytes_frac"].min() * 0.6, points["resident_bytes_frac"].max() * 1.15)
        axis.set_xlabel("KV bytes on the GPU (share of the full cache)")
    handles, labels, columns = _legend(points, looks)
    figure.tight_layout()
    for axis, rows, y, sign in ((left, points, "exact_match_frac", 1), (right, lossy, "kl_to_full", -1)):
        plain = rows[rows["family"] != "reference"]
        front = [plain.index[i] for i in pareto(plain["resident_bytes_frac"].to_numpy(), sign * plain[y].to_numpy())]
        if front:
            _label_front(axis, rows, front, "resident_bytes_frac", y, sign)
    return style.save(figure, folder, name, handles, labels, columns)


def _by_task(points, full, note, folder, name):
    """Recipes by tasks at one setting, the full cache on top."""
    tasks = list(full.index)
    cells = np.array([full.to_numpy(), *(p.reindex(tasks).to_numpy() for p in points["by_task"])])
    figure, axis = style.plt.subplots(figsize=(style.COLUMN_IN, 0.75 + _ROW_IN * len(cells)))
    axis.imshow(100 * cells, cmap="viridis", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            axis.text(j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=5, color="white" if value < 0.6 else "black")
    top = pd.DataFrame([{"name": "full cache", "family": "reference"}])
    _name_rows(axis, pd.concat([top, points[["name", "family"]]], ignore_index=True))
    axis.set_xticks(range(len(tasks)), tasks, rotation=45, ha="right", rotation_mode="anchor")
    axis.tick_params(axis="x", length=0, pad=1)
    return style.save(figure, folder, name, title="Right answers (%)", note=sentence(note))


def _draw_part(rows, model, folder, suffix, every):
    """Figures of the rows that differ in policy, task, length and seed alone."""
    points = points_of(rows)
    yield _over_bytes(points, model, folder, f"accuracy_bytes{suffix}"), ""
    full = rows.groupby("task", sort=False)[["num_answers", "full_exact_match_frac"]].apply(lambda t: np.average(t["full_exact_match_frac"], weights=t["num_answers"]))
    for end, chosen, note in at_budgets(points[points["name"] != "full"], every):
        if len(chosen):
            yield _by_task(chosen, full, note, folder, f"accuracy_tasks{suffix}{end}"), note


def draw(results, folder, every=False):
    """Yields (name, note) of the figures written."""
    if not results.is_accuracy:
        return
    results.need("summary", _SUMMARY, "the accuracy figures")
    for suffix, rows, drawn in parts_of(results.summary, results.axes, every):
        for name, note in _draw_part(rows, setting.run_model(results.folder), folder, suffix, every):
            yield name, "; ".join(filter(None, (drawn, note)))
