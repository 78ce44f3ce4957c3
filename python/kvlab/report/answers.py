"""Single graded answers as a table of the page: those where a KV policy and the full cache differ come first."""

import tables

NAME = "answers.csv"
_FIRST = ("recipe", "budget_tokens", "task", "length", "sample", "turn")
_REST = ("neg_log2", "kl_nats", "answer_tokens", "first_wrong", "first_diverging", "needle_found")
_ORDER = ("lost", "won", "both wrong", "both right")


def verdict(exact, full_exact):
    """One word for an answer, from the columns `exact` and `full_exact` of answers.csv."""
    if exact == full_exact:
        return "both right" if exact == "1" else "both wrong"
    return "won" if exact == "1" else "lost"


def table_of(folder):
    """The table, or None where the folder has no graded answers. Its first column: whether the full cache and the policy were right."""
    path = folder / NAME
    columns, rows = tables.read(path) if path.is_file() else ([], [])
    if not rows or not {"exact", "full_exact"} <= set(columns):
        return None
    exact, full = columns.index("exact"), columns.index("full_exact")
    recipe = columns.index("recipe") if "recipe" in columns else None
    own = [[verdict(row[exact], row[full]), *row] for row in rows if recipe is None or row[recipe] != "full"]
    own.sort(key=lambda row: _ORDER.index(row[0]))
    titles = ["full cache and policy", *columns]
    shown = [0, *(titles.index(c) for c in (*_FIRST, *_REST) if c in titles)]
    return tables.table(f"{NAME}, lost and won answers first", titles, own, shown)
