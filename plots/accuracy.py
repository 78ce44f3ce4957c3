"""Answers of a model under KV policies: right answers over bytes, and task by task (docs/accuracy.md)."""

import numpy as np
import pandas as pd

from matplotlib.lines import Line2D

import setting
import style
from families import FAMILIES
from fidelity import FRONT, choose, draw_front, draw_others, front_of, label_front, left_out_note, legend_of, looks_of
from heat_maps import MAX_ROWS, ROW_IN, name_rows
from groups import at_budgets, only_labels, parts_of, sentence, wilson
from names import model_name

SUMMARY_COLUMNS = "recipe budget_tokens task length num_answers exact_match_frac kl_to_full bits_per_byte resident_bytes_frac full_exact_match_frac family".split()


def points_of(rows):
    """A row per policy and budget: exact_match_frac and full_exact_match_frac as the mean over tasks (lengths and seeds pooled by answers), the
    other numbers over answers, each with the numbers of its row (KL per token, then); `by_task` holds the shares task by task, `below` and `above` reach from
    exact_match_frac to the ends of its 95 % interval (Wilson's of each task, added in squares as independent: Zou and Donner 2008), and num_answers the fewest of a task."""
    shares = ["exact_match_frac", "full_exact_match_frac"]
    points = []
    for (policy, budget), own in rows.groupby(["policy", "budget"], sort=False):
        mean = {c: np.average(own[c], weights=own["num_answers"]) for c in ("kl_to_full", "resident_bytes_frac")}
        by = own.groupby("task", sort=False)[["num_answers", *shares]]
        tasks = by.apply(lambda t: pd.Series({c: np.average(t[c], weights=t["num_answers"]) for c in shares} | {"num_answers": t["num_answers"].sum()}))
        ends = [wilson(t.exact_match_frac * t.num_answers, t.num_answers) for t in tasks.itertuples()]
        below, above = (np.sqrt(sum((end[i] - share) ** 2 for end, share in zip(ends, tasks["exact_match_frac"]))) / len(ends) for i in (0, 1))
        points.append({"name": policy, "budget": budget, "family": own["family"].iloc[0], **mean, **tasks[shares].mean().to_dict(), "by_task": tasks["exact_match_frac"],
                       "below": below, "above": above, "num_answers": int(tasks["num_answers"].min()), "host_bytes_frac": 0.0, "disk_bytes_frac": 0.0})
    table = pd.DataFrame(points)
    return table.sort_values("family", key=lambda f: f.map(list(FAMILIES).index), kind="stable", ignore_index=True)


def _curves(axis, points, y, looks):
    for policy, rows in points[points["name"].isin(looks)].groupby("name", sort=False):
        rows = rows.sort_values("resident_bytes_frac", kind="stable")
        look = {"linewidth": 0.7, "alpha": 0.75, "markersize": 3.2, "markeredgewidth": 0, "linestyle": "-", **looks[policy]}
        axis.plot(rows["resident_bytes_frac"], rows[y], **look)
        if y == "exact_match_frac":
            axis.errorbar(rows["resident_bytes_frac"], rows[y], yerr=rows[["below", "above"]].to_numpy().T, fmt="none", ecolor=look["color"], elinewidth=0.4, capsize=1, capthick=0.4, alpha=0.5, zorder=1.3)


def _label_axes(left, right, points, lossy, model):
    left.axhline(points["full_exact_match_frac"].max(), color="black", linewidth=0.6, linestyle=":")
    left.set_ylabel("Right answers (mean over tasks)" + (f"\nof the model {model}" if model else ""))
    top = max((points["exact_match_frac"] + points["above"]).max(), points["full_exact_match_frac"].max(), 0.01)
    left.set_ylim(-0.02 * top, 1.06 * top)  # marks at both ends are whole
    if len(lossy):
        style.logarithmic(right, "y", lossy["kl_to_full"].min(), lossy["kl_to_full"].max())
        right.set_ylim(bottom=0.35 * lossy["kl_to_full"].min())
    right.set_ylabel("KL to the full cache\n(nats per token, mean over answers)")
    for axis in (left, right):
        style.logarithmic(axis, "x", points["resident_bytes_frac"].min(), points["resident_bytes_frac"].max())
        axis.set_xlim(points["resident_bytes_frac"].min() * 0.6, points["resident_bytes_frac"].max() * 1.15)
        axis.set_xlabel("KV bytes on the GPU (share of the full cache)")


def _over_bytes(points, model, folder, name, every):
    points = points[points["name"].isin(only_labels(points["name"].unique(), name))]
    lossy, x = points[points["kl_to_full"] > 1e-6], "resident_bytes_frac"
    figure, axes = style.grid(name, 1, 2, style.PAGE_IN, 2.9)
    panels = []
    for axis, rows, y, sign in ((axes[0, 0], points, "exact_match_frac", 1), (axes[0, 1], lossy, "kl_to_full", -1)):
        panels.append((axis, rows, y, sign, rows.loc[front_of(rows[rows["family"] != "reference"], x, y, sign)]))
    chosen, others = choose(points, [line["name"] for *_, line in panels], name, every)
    coloured = points[points["name"].isin(chosen)]
    looks = looks_of(coloured)
    for axis, rows, y, _, line in panels:
        draw_others(axis, rows, others, x, y)
        _curves(axis, rows, y, looks)
        draw_front(axis, line, x, y)
    _label_axes(*axes[0], points, lossy, model)

    def place():
        for axis, rows, y, sign, line in panels:
            if len(line):
                label_front(axis, rows, line[line["name"].isin(chosen)], x, y, sign, name)

    more = [(Line2D([], [], **FRONT), "Pareto front"), (Line2D([], [], color="black", linewidth=0.6, linestyle=":"), "full cache")]
    note = f"n = {points['num_answers'].min()} answers or more per task; bars are 95 % intervals. {left_out_note(others, name)}".strip()
    return style.save(figure, folder, name, *legend_of(coloured, looks, name, more), note=note, place=place)


def _by_task(points, full, note, folder, name):
    """Recipes by tasks at one setting, the full cache on top."""
    tasks = list(full.index)
    cells = np.array([full.to_numpy(), *(p.reindex(tasks).to_numpy() for p in points["by_task"])])
    figure, axes = style.grid(name, 1, 1, style.COLUMN_IN, 0.75 + ROW_IN * len(cells))
    axis = axes[0, 0]
    axis.imshow(100 * cells, cmap="viridis", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            axis.text(j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=5, color="white" if value < 0.6 else "black")
    top = pd.DataFrame([{"name": "full", "family": "reference"}])
    name_rows(axis, pd.concat([top, points[["name", "family"]]], ignore_index=True), name)
    axis.set_xticks(range(len(tasks)), tasks, rotation=45, ha="right", rotation_mode="anchor")
    axis.tick_params(axis="x", length=0, pad=1)
    never = [task for task, share in full.items() if share == 0]
    notes = (f"n = {points['num_answers'].min()} answers or more per cell.", f"The full cache answers none of {', '.join(never)}." if never else "", sentence(note))
    return style.save(figure, folder, name, title="Right answers (%)", note=" ".join(filter(None, notes)))


def _draw_part(rows, model, folder, suffix, every):
    """Figures of the rows that differ in policy, task, length and seed alone."""
    points = points_of(rows)
    bytes_ = points["resident_bytes_frac"]
    if len(points) == 1 or bytes_.max() > 1.01 * bytes_.min():  # prefill selectors leave bytes as they are
        yield _over_bytes(points, model, folder, f"accuracy_bytes{suffix}", every), ""
    full = rows.groupby("task", sort=False)[["num_answers", "full_exact_match_frac"]].apply(lambda t: np.average(t["full_exact_match_frac"], weights=t["num_answers"]))
    for end, chosen, note in at_budgets(points[points["name"] != "full"], every):
        for first in range(0, len(chosen), MAX_ROWS):
            page = f"_{first // MAX_ROWS + 1}" if first else ""
            yield _by_task(chosen[first : first + MAX_ROWS], full, note, folder, f"accuracy_tasks{suffix}{end}{page}"), note


def draw(results, folder, every=False):
    """Yields (name, note) of the figures written."""
    if not results.is_accuracy:
        return
    results.need("summary", SUMMARY_COLUMNS, "the accuracy figures")
    for suffix, rows, drawn in parts_of(results.summary, results.axes, every):
        for name, note in _draw_part(rows, model_name(setting.run_model(results.folder)), folder, suffix, every):
            yield name, "; ".join(filter(None, (drawn, note)))
