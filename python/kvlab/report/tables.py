"""Tables of the page: the text of CSV files as it is, with the columns that are shown first."""

import csv

import entries

MOST_ROWS = 2000  # of a table of the page
_SERVED = (
    "search_rate_per_s search_concurrency search_replicas search_tp goodput_per_s slo_attainment_frac binding_limit waits_for gpus "
    "dollars_per_million_tokens ttft_p50_ms ttft_p99_ms tpot_p50_ms tpot_p99_ms e2e_p50_ms requests_per_s output_tokens_per_s "
    "kv_used_mean_frac preemptions prefix_hit_frac attention_mass"
).split()
_REPLAYED = (
    "budget_tokens attention_mass output_rel_err topk_recall needle_kept attended_tokens resident_bytes_frac host_bytes_frac "
    "disk_bytes_frac family"
).split()
_GRADED = (
    "budget_tokens task length num_answers exact_match_frac exact_match_lo exact_match_hi full_exact_match_frac kl_to_full "
    "resident_bytes_frac family"
).split()
_CACHED = "requests lookups hit_frac token_hit_frac evictions capacity_gib".split()
# Files beside summary.csv that are shown as they are.
OTHERS = (
    "service.csv",
    "pools.csv",
    "links.csv",
    "stores.csv",
    "search.csv",
    "validation.csv",
    "points.csv",
    "groups.csv",
    "left_out.csv",
    "claims.csv",
)


def read(path):
    """Columns and rows of a CSV file, as text."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return (rows[0], rows[1:]) if rows else ([], [])


def _shown(results, columns, rows):
    """Columns to begin with: the axes and the seed where they vary, then metrics that have values."""
    wanted = _GRADED if results.is_accuracy else _CACHED if results.is_hit_ratio else _REPLAYED if results.is_replay else _SERVED
    end = columns.index("seed") + 1 if "seed" in columns else len(results.axes) + 1
    varies = lambda c: len({row[c] for row in rows}) > 1
    has_recipe = "recipe" in columns and (results.is_replay or results.is_accuracy)
    told = ("kv_policy", "kv_policy.recipe", "kv_policy.budget_tokens") if has_recipe else ()
    axes = [c for c in range(1, end) if varies(c) and columns[c] not in told]
    recipe = [columns.index("recipe")] if has_recipe else []
    found = [columns.index(name) for name in wanted if name in columns]
    return list(dict.fromkeys([0, *recipe, *axes, *(c for c in found if any(row[c] for row in rows))]))


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def table(name, columns, rows, shown, axes=()):
    """Data of a table. `searched`: the columns that the filter looks into: run, axes, and those of text."""
    searched = [c for c, title in enumerate(columns) if c == 0 or title in axes or any(row[c] and not _is_number(row[c]) for row in rows)]
    return {"name": name, "columns": columns, "rows": rows[:MOST_ROWS], "shown": shown, "searched": searched, "total": len(rows)}


def _read_shown(folder, name):
    """The same with the parameters of list entries in place of their labels."""
    columns, rows = read(folder / name)
    labels = entries.of_folder(folder)
    return columns, [[entries.in_table(text, labels.get(c, {})) for c, text in zip(columns, row)] for row in rows] if labels else rows


def summary(results):
    columns, rows = _read_shown(results.folder, "summary.csv")
    return table(
        "summary.csv",
        columns,
        rows,
        _shown(results, columns, rows),
        (*columns[1 : columns.index("seed") + 1], "task", "length", "recipe", "budget_tokens") if "seed" in columns else results.axes,
    )


def others(folder):
    """The further tables of a folder that have rows."""
    found = []
    for name in OTHERS:
        if (folder / name).is_file():
            columns, rows = _read_shown(folder, name)
            if rows:
                found.append(table(name, columns, rows, list(range(len(columns)))))
    return found
