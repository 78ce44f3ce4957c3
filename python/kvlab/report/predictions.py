"""Does fidelity in replay predict answers? The scatter plot and the rank correlations of plots/replay_predicts.py, for every measure."""

import numpy as np

import replay_predicts
from families import FAMILIES, MARKERS
from groups import parts_of
from spec import axis, figure, heat, heat_axes, numbers, option, symbol


_SCALE = [[0, "#7f3b08"], [0.25, "#fdb863"], [0.5, "#f7f7f7"], [0.75, "#b2abd2"], [1, "#2d004b"]]  # brown to purple, as in the figure


def _capital(text):
    return text[0].upper() + text[1:]


def _scatter(rows, measure, title, sign, part):
    usable = rows[(rows["full_exact_match_frac"] > 0) & rows[measure].notna()]
    rho = replay_predicts.correlations(rows, measure, sign)[1][0]
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": family,
            "x": numbers(own[measure]),
            "y": numbers(100 * own["drop"]),
            "marker": {"color": FAMILIES[family], "symbol": symbol(MARKERS[family]), "size": 7, "opacity": 0.7},
            "text": [f"{r} {b:g}, {t}" for r, b, t in zip(own["recipe"], own["budget_tokens"], own["task"])],
            "hovertemplate": "%{text}: %{x:.4~g}, %{y:.3~g}<extra>%{fullData.name}</extra>",
        }
        for family, own in usable.groupby("family", sort=False)
    ]
    note = f"n = {len(usable)} pairs of policy, task and budget; Spearman's ρ over all of them is {rho:.2f}." if np.isfinite(rho) else ""
    name = ", ".join(filter(None, (title, part)))
    return option(traces, axis(f"{_capital(title)} in replay"), axis("Right answers lost (points)"), name, note)


def _matrix(rows, measure, title, sign, against, words, part):
    cells, pooled = replay_predicts.correlations(rows, measure, sign, against)
    if not cells:
        return None
    tasks = [t for t in rows["task"].unique() if any(task == t for task, _ in cells)]
    budgets = sorted({budget for _, budget in cells})
    values = np.array([[cells.get((t, b), (np.nan,))[0] for b in budgets] for t in tasks])
    texts = [["–" if np.isnan(v) else f"{v:.2f}" for v in row] for row in values]
    trace = {**heat(values, tasks, [f"{b:g}" for b in budgets], -1, 1, "ρ", texts), "colorscale": _SCALE}
    name = ", ".join(filter(None, (f"{title}, {words}", part)))
    return option([trace], *heat_axes("Budget (tokens)"), name, f"Pooled ρ = {pooled[0]:.2f}.")


def predictions(results):
    """Figures of graded recipes that were replayed too; none where they were not."""
    rows = results.summary
    if "attention_mass" not in rows or rows["attention_mass"].isna().all():
        return []
    results.need("summary", [m for m, _, _ in replay_predicts.MEASURES], "the figure replay_predicts")
    points, matrices = [], []
    for _, part_rows, part in parts_of(rows, results.axes, True):
        own = replay_predicts.rows_of(part_rows)
        for measure, title, sign in replay_predicts.MEASURES:
            if own[measure].notna().any():
                points.append(_scatter(own, measure, title, sign, part))
                pairs = (("drop", "right answers"), ("kl_to_full", "−KL"))
                matrices += [_matrix(own, measure, title, sign, against, words, part) for against, words in pairs]
    return [
        figure("replay_predicts", "Right answers lost over fidelity in replay", points, "measure"),
        figure("replay_predicts_rho", "Rank correlation by task and budget", [m for m in matrices if m], "measure"),
    ]
