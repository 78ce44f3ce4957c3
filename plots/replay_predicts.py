"""Does fidelity on recorded attention tell which policy answers better? Rank correlations task by task and budget by budget (docs/accuracy.md)."""

import numpy as np

import style
import whole_file
import written
from families import FAMILIES, MARKERS
from groups import parts_of

# Column, its name in the figure, and whether more of it is better.
MEASURES = (("attention_mass", "attention mass", 1), ("output_rel_err", "output error", -1), ("topk_recall", "top-k recall", 1), ("replay_kl_nats", "KL of attention", -1),
            ("far_mass_kept", "far attention kept", 1), ("needle_mass_kept", "attention on the answer kept", 1),
            ("needle_found_frac", "answers found", 1))
_LEFT_OUT = ("full", "random", "oracle", "exact_topk")
_FEWEST = 8  # recipes that a correlation needs


def spearman(x, y):
    """Rank correlation with average ranks for ties; NaN where either does not vary."""
    rx, ry = x.rank(), y.rank()
    return float("nan") if rx.nunique() < 2 or ry.nunique() < 2 else float(np.corrcoef(rx, ry)[0, 1])


def untied_ceiling(y):
    """The largest rho with y, whose equal values share a rank, that a measure can have which gives no two rows the same value (Kendall 1948, on ties)."""
    n, tied = len(y), y.value_counts()
    return float(np.sqrt(1 - (tied**3 - tied).sum() / (n**3 - n))) if tied.size > 1 else float("nan")


def rows_of(summary):
    """Replayed rows with `drop`: the share of answers lost to the full cache's."""
    rows = summary[summary["attention_mass"].notna() & ~summary["recipe"].isin(_LEFT_OUT)]
    return rows.assign(drop=rows["full_exact_match_frac"] - rows["exact_match_frac"])


def _fit(rows, measure, sign, against):
    """(rho, untied ceiling, rows); rho is positive where replay is right."""
    return spearman(sign * rows[measure], -rows[against]), untied_ceiling(rows[against]), len(rows)


def correlations(rows, measure, sign, against="drop"):
    """Tasks by budgets, and all in one piece: (rho, untied ceiling, rows) of the rows that have both."""
    usable = rows[(rows["full_exact_match_frac"] > 0) & rows[measure].notna()]
    cells = {cell: _fit(own, measure, sign, against) for cell, own in usable.groupby(["task", "budget_tokens"], sort=False) if len(own) >= _FEWEST}
    return cells, _fit(usable, measure, sign, against)


def _scatter(axis, rows, measure, title, rho):
    for family, own in rows.groupby("family", sort=False):
        look = {"marker": MARKERS[family], "color": FAMILIES[family], "markersize": 2.8, "alpha": 0.6, "markeredgewidth": 0}
        axis.plot(own[measure], 100 * own["drop"], linestyle="none", label=family, **look)
    axis.set_xlabel(f"{title[0].upper()}{title[1:]} in replay")
    axis.set_ylabel("Right answers lost (points)")
    axis.set_title(f"pooled: ρ = {rho:.2f}", fontsize=7, pad=3)


def _matrix(axis, cells, tasks, budgets, title):
    values = np.array([[cells.get((t, b), (np.nan,))[0] for b in budgets] for t in tasks])
    axis.imshow(values, cmap="PuOr", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            axis.text(j, i, "–" if np.isnan(value) else f"{value:.2f}".replace("-", "−"), ha="center", va="center", fontsize=5.5, color="white" if abs(value) > 0.6 else "black")
    axis.set_xticks(range(len(budgets)), [f"{b:.0f}" for b in budgets])
    axis.set_yticks(range(len(tasks)), tasks)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.set_xlabel("Budget (tokens)", labelpad=1)
    axis.set_title(title, fontsize=7, pad=3)


def _write(found, path):
    lines = ["measure,against,task,budget_tokens,recipes,spearman,untied_ceiling"]
    for (measure, against), (cells, pooled) in found.items():
        for (task, budget), (rho, most, count) in [*cells.items(), (("pooled", None), pooled)]:
            lines.append(f"{measure},{against},{task},{'' if budget is None else f'{budget:.0f}'},{count},{rho:.4f},{most:.4f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file.replacing(written.note(path)) as fresh:
        fresh.write_text("\n".join(lines) + "\n")


def _draw_part(rows, folder, name):
    """Returns the figure's name; None: there was not enough for one."""
    found = {(m, against): correlations(rows, m, sign, against) for m, _, sign in MEASURES for against in ("drop", "kl_to_full")}
    _write(found, folder / f"{name}.csv")
    drawn = [m for m in MEASURES if found[m[0], "drop"][0]]
    if not drawn:
        return None
    measure, title, _ = max(drawn, key=lambda m: np.nan_to_num(found[m[0], "drop"][1][0], nan=-1))
    cells, pooled = found[measure, "drop"]
    kl_cells, kl_pooled = found[measure, "kl_to_full"]
    tasks = [t for t in rows["task"].unique() if any(task == t for task, _ in cells)]
    budgets = sorted(rows["budget_tokens"].unique())
    axes = style.grid(name, 1, 3, style.PAGE_IN, 0.9 + max(1.6, 0.16 * len(tasks)), gridspec_kw={"width_ratios": (1.5, 1, 1)})[1][0]
    _scatter(axes[0], rows[(rows["full_exact_match_frac"] > 0) & rows[measure].notna()], measure, title, pooled[0])
    _matrix(axes[1], cells, tasks, budgets, "ρ with right answers")
    _matrix(axes[2], kl_cells, tasks, budgets, f"ρ with −KL (pooled {kl_pooled[0]:.2f})")
    handles, labels = axes[0].get_legend_handles_labels()
    note = f"n = {len(rows)} pairs of policy, task and budget; ρ is Spearman's, its colour runs from −1 (brown) to 1 (purple)."
    return style.save(axes[0].figure, folder, name, handles, labels, note=note)


def draw(results, folder, every=False):
    """Yields (name, note) of the figures and writes the numbers beside them, where graded recipes were replayed too."""
    if not results.is_accuracy or results.summary["attention_mass"].isna().all():
        return
    results.need("summary", [m for m, _, _ in MEASURES], "the figure replay_predicts")
    for suffix, part, note in parts_of(results.summary, results.axes, every):
        yield _draw_part(rows_of(part), folder, f"replay_predicts{suffix}"), note
