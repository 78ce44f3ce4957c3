"""Everything that an experiment may name: schedulers, KV recipes, models, hardware, experiments, ..."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from kvlab._call import call
from kvlab._kvlab import InputError


def list_items(kind: str | None = None) -> pd.DataFrame:
    """Names of one kind with their summaries, as `kvlab list KIND` prints them.

    kind: "schedulers", "kv", "models", ...; None: returns the kinds.
    Returns a row per item with the columns name, kind, summary, source; KV recipes and parts also have hosts and confidence.
    InputError: there is no such kind; the nearest one is named."""
    if kind is None:
        return pd.DataFrame({"kind": json.loads(call("list", "--json"))})
    return pd.DataFrame(json.loads(call("list", kind, "--json")))


def describe(name: str, kind: str | None = None) -> dict[str, Any]:
    """One item with its parameters, as `kvlab describe NAME` prints it.

    kind: needed where items of several kinds have this name.
    Returns {"name", "kind", "summary", "source", "parameters", ...}; each parameter has key, type, unit, range, default (None: required)
    and meaning.
    InputError: nothing has this name (the nearest one is named), or several kinds have it."""
    found = json.loads(call("describe", name, "--json"))
    items = [item for item in (found if isinstance(found, list) else [found]) if kind in (None, item["kind"])]
    kinds = ", ".join(item["kind"] for item in (found if isinstance(found, list) else [found]))
    if not items:
        raise InputError(f"'{name}' is no item of kind '{kind}'; it is of {kinds}")
    if len(items) > 1:
        raise InputError(f"'{name}' is of several kinds: {kinds}; say which with kind=")
    return items[0]
