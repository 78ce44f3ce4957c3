"""The name of a KV policy: its recipe with the changes to it, and its budget, from the axes of a sweep (docs/results.md)."""

import re

import pandas as pd

BUDGETS = ("budget_tokens", "budget_frac", "compression_ratio")


def is_policy_axis(axis):
    return axis == "kv_policy" or axis.startswith("kv_policy.")


def _text(value):
    return f"{value:.12g}" if isinstance(value, (int, float)) else str(value)


def _parts_of_label(label, has_recipe):
    """{key: value} of 'snapkv 128 allocator pyramid', or of 'budget_tokens 128 allocator pyramid' where recipes are a list of their own."""
    words = re.sub(r"#\d+$", "", str(label)).split()
    parts = {"recipe": words.pop(0)} if has_recipe and words else {}
    if has_recipe and words and re.fullmatch(r"[\d.]+", words[0]):
        budget = words.pop(0)  # with a point: a share, in older results without its key
        parts["budget_frac" if "." in budget else "budget_tokens"] = budget
    return parts | dict(zip(words[::2], words[1::2]))


def _named(row, axes):
    """(policy, budget) of a run: ('snapkv (allocator pyramid)', 'budget_tokens 128')."""
    given = {a.removeprefix("kv_policy."): _text(row[a]) for a in axes if a != "kv_policy" and not pd.isna(row[a])}
    parts = _parts_of_label(row["kv_policy"], "recipe" not in given) | given if "kv_policy" in axes else given
    recipe = parts.pop("recipe", "one policy")
    budgets = [f"{key} {parts.pop(key)}" for key in BUDGETS if key in parts]
    changes = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in parts.items())
    return row.get("recipe", recipe) + (f" ({changes})" if changes else ""), " ".join(budgets)


def add_names(rows, axes):
    """`rows` with the columns `policy` and `budget` (empty: none is given). Lists of the axis kv_policy that would have one name are told apart
    by what that axis calls them."""
    axes = [a for a in axes if is_policy_axis(a)]
    named = pd.DataFrame([_named(row, axes) for row in rows.to_dict("records")], columns=["policy", "budget"], index=rows.index, dtype=object)
    if "kv_policy" in axes:
        lists = rows["kv_policy"].astype(str)
        shared = lists.groupby([named["policy"], named["budget"]]).transform("nunique") > 1
        marked = set(zip(named.loc[shared, "policy"], lists[shared]))
        named["policy"] = [f"{p} ({at})" if (p, at) in marked else p for p, at in zip(named["policy"], lists)]
    return rows.assign(policy=named["policy"], budget=named["budget"])


def full_name(policy, budget):
    """'snapkv 128', 'snapkv budget_frac 0.25', 'full'."""
    return f"{policy} {budget.removeprefix('budget_tokens ')}".strip()
