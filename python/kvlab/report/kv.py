"""Figures of KV policies on recorded attention and of graded answers, and of measured points and published claims."""

import numpy as np

import accuracy
import claims
import fidelity
import heat_maps
import predictions
from groups import at_budgets, parts_of, sentence
from naming import named
from spec import axis, figure, heat, heat_axes, numbers, option, symbol

_BYTES, _READ = "KV bytes on the GPU (share of the full cache)", "Tokens read per step, layer and KV head"


def _family_curves(table, x, y, looks, scale=1):
    """A line per policy, coloured by family; hollow where a part is in CPU memory or on disk."""
    traces, groups = [], list(table.groupby("name", sort=False))
    names = dict(zip((name for name, _ in groups), named(name for name, _ in groups)))
    for name, rows in groups:
        rows = rows.sort_values(x, kind="stable")
        colour, hollow = looks[name]["color"], fidelity.is_elsewhere(rows).any()
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": names[name],
                "x": numbers(rows[x]),
                "y": numbers(scale * rows[y]),
                "line": {"color": colour, "width": 1, "dash": "dash" if hollow else "solid"},
                "marker": {"color": colour, "symbol": symbol(looks[name]["marker"]) + ("-open" if hollow else ""), "size": 7},
                "legendgroup": rows["family"].iloc[0],
                "legendgrouptitle": {"text": rows["family"].iloc[0]},
                "text": [b or "no budget" for b in rows["budget"]],
                "hovertemplate": "%{text}: %{x:.4~g}, %{y:.4~g}<extra>%{fullData.name}</extra>",
            }
        )
    return traces


def _over(table, x, title, key, looks):
    """Attention kept and output error over bytes, or over tokens read."""
    lossy = table.assign(lost=1 - table["attention_mass"])
    note = "Dashed and hollow: the rest is in CPU memory or on disk." if fidelity.is_elsewhere(table).any() else ""
    options = [
        option(_family_curves(rows, x, y, looks), axis(title, log=True), axis(y_title, log=log), y_title, note)
        for rows, y, y_title, log in (
            (table, "attention_mass", "Attention mass kept (share)", False),
            (lossy[lossy["lost"] > 0], "lost", "Attention mass lost (share)", True),
            (lossy[lossy["output_rel_err"] > 0], "output_rel_err", "Relative output error (ratio)", True),
            (table, "needle_kept", "Needle attended to (share)", False),
            (table, "topk_recall", "Top-k recall (share)", False),
        )
    ]
    return figure(key, f"Fidelity over {'bytes' if x == 'resident_bytes_frac' else 'tokens read'}", options, "measure", is_wide=True)


def _maps(results, table):
    """Attention mass kept per head, and per decode step, a row per policy; an option per budget."""
    lossy, figures = table[(table["attention_mass"] < 1) | table["swept"]], []
    for source, columns, name, title in (
        (results.heads, ["layer", "kv_head"], "heads", "Layer and KV head"),
        (results.steps, ["sample", "step"], "steps", "Sample and decode step"),
    ):
        options = []
        for suffix, chosen, note in at_budgets(lossy, True) if source is not None else ():
            if len(chosen):
                cells = heat_maps.rows_of(source, chosen, columns)
                cells = cells.sort_index(axis=1) if name == "heads" else cells
                cell_map = heat(cells.to_numpy(), named(chosen["name"]), [f"{a}, {b}" for a, b in cells.columns], 0, 1, "share")
                options.append(option([cell_map], *heat_axes(title), suffix.strip("_").replace("_", " ") or "all", note))
        figures.append(
            figure(
                f"fidelity_{name}",
                f"Attention mass kept per {'KV head' if name == 'heads' else 'decode step'}",
                options,
                "budget",
                is_wide=True,
            )
        )
    return figures


def replay(results):
    results.need("summary", fidelity.SUMMARY_COLUMNS, "the fidelity figures")
    table = fidelity.points_of(results)
    if table.empty:
        return []
    looks = fidelity.looks_of(table)
    return [
        _over(table, "resident_bytes_frac", _BYTES, "fidelity_bytes", looks),
        _over(table, "attended_tokens", _READ, "fidelity_attended", looks),
        *_maps(results, table),
    ]


def _tasks(rows, table, title):
    """Right answers of each policy, task by task, the full cache on top; an option per budget."""
    full = rows.groupby("task", sort=False)[["num_answers", "full_exact_match_frac"]].apply(
        lambda t: np.average(t["full_exact_match_frac"], weights=t["num_answers"])
    )
    counts, options = rows.groupby(["policy", "budget", "task"])["num_answers"].sum(), []
    for suffix, chosen, note in at_budgets(table[table["name"] != "full"], True):
        if len(chosen):
            cells = np.array([full.to_numpy(), *(p.reindex(full.index).to_numpy() for p in chosen["by_task"])])
            texts = [["" if np.isnan(v) else f"{100 * v:.0f}" for v in row] for row in cells]
            cell_map = heat(100 * cells, ["full cache", *named(chosen["name"])], full.index, 0, 100, "%", texts)
            few = (
                f"A cell has {counts.min()} to {counts.max()} answers."
                if counts.min() < counts.max()
                else f"A cell has {counts.min()} answers."
            )
            options.append(
                option(
                    [cell_map],
                    *heat_axes("Task"),
                    ", ".join(filter(None, (title, suffix.strip("_").replace("_", " ")))) or "all",
                    " ".join(filter(None, (few, sentence(note)))),
                )
            )
    return options


def graded(results):
    results.need("summary", accuracy.SUMMARY_COLUMNS, "the accuracy figures")
    over, tasks = [], []
    for _, rows, title in parts_of(results.summary, results.axes, True) if len(results.summary) else ():
        table = accuracy.points_of(rows)
        looks, lossy = fidelity.looks_of(table), table[table["kl_to_full"] > 1e-6]
        for shown, y, name, log in (
            (table, "exact_match_frac", "Right answers (mean over tasks)", False),
            (lossy, "kl_to_full", "KL to the full cache (nats per token)", True),
        ):
            full = table["full_exact_match_frac"].max()
            limits = [("y", full)] if not log else []
            found = option(
                _family_curves(shown, "resident_bytes_frac", y, looks),
                axis(_BYTES, log=True),
                axis(name, log=log, **({} if log else {"rangemode": "tozero"})),
                ", ".join(filter(None, (name, title))),
                "",
                limits,
            )
            over.append({**found, "note": "" if log else "Dashed grey: the full cache."})
        tasks += _tasks(rows, table, title)
    return [
        figure("accuracy_bytes", "Answers over bytes", over, "measure", is_wide=True),
        figure("accuracy_tasks", "Right answers by task (%)", tasks, "budget", is_wide=True),
        *predictions.predictions(results),
    ]


def measured_points(results):
    results.need("points", ["group", "diff_frac", "basis"], "the figure of points")
    traces = [
        {
            "type": "box",
            "name": basis,
            "orientation": "h",
            "x": numbers(100 * rows["diff_frac"]),
            "y": rows["group"].tolist(),
            "boxpoints": "all",
            "pointpos": 0,
            "jitter": 0.3,
            "marker": {"color": colour, "size": 3},
            "text": rows["id"].tolist(),
        }
        for (basis, rows), colour in zip(results.points.groupby("basis", sort=True), ("#1f5fa8", "#b8500c"))
    ]
    return [
        figure(
            "points",
            "Measured points: TPOT, simulated / measured − 1",
            [option(traces, axis("Error (%)"), {"type": "category", "automargin": True, "autorange": "reversed"})],
            is_wide=True,
        )
    ]


def _published_marks(rows, names):
    span = {"type": "data", "array": numbers(rows["published_to"] - rows["published"]), "arrayminus": [0] * len(rows), "symmetric": False}
    marker = {"color": "#606060", "symbol": "line-ns-open", "size": 11}
    x = numbers(rows["published"])
    return {"type": "scatter", "mode": "markers", "name": "published", "x": x, "y": names, "marker": marker, "error_x": span}


def published(results):
    """Published figures or ranges, and ours, a row per claim."""
    rows = results.claims[results.claims["verdict"].isin(claims.VERDICTS)]
    names = [claims.name_of(row) for _, row in rows.iterrows()]
    traces = [_published_marks(rows, names)] if names else []
    for verdict, label, look in zip(claims.VERDICTS, claims.LABELS, claims.LOOKS):
        own = (rows["verdict"] == verdict).to_numpy()
        if own.any():
            x, y = numbers(rows["ours"][own]), [n for n, is_own in zip(names, own) if is_own]
            marker = {"color": look["color"], "symbol": symbol(look["marker"]), "size": 7}
            traces.append({"type": "scatter", "mode": "markers", "name": f"ours: {label} ({own.sum()})", "x": x, "y": y, "marker": marker})
    y = {"type": "category", "automargin": True, "autorange": "reversed", "categoryorder": "array", "categoryarray": names}
    options = [option(traces, axis("Figure: a ratio, or in the unit named", log=True), y)]
    return [figure("claims", "Published figures and ours", options, is_wide=True)]
