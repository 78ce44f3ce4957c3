"""Reads a results folder (format: docs/results.md) and says in one line what is wrong with it."""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import setting
from errors import ResultsError, Unjoinable  # noqa: F401  (readers of results take them from here)
from names import model_name
from policies import add_names, full_name

_CSV = {"summary": {"run": str}, "requests": {"run": str, "state": str, "session": str}, "timeline": {"run": str},
        "validation": {}, "throughput": {}, "validation_steps": {}, "steps": {"run": str}, "heads": {"run": str},
        "points": {"id": str, "group": str}, "claims": {"name": str}, "search": {"run": str}, "prompts": {"run": str}}
_UNITS = (("_ms_per_token", " (ms/token)"), ("_tokens_per_s", " (tokens/s)"), ("_rate_per_s", " rate (requests/s)"), ("rate_per_s", "Arrival rate (requests/s)"),
          ("_per_s", " (1/s)"), ("_tokens", " (tokens)"), ("_blocks", " (blocks)"), ("_bytes", " (bytes)"), ("_frac", " (share)"),
          ("_ms", " (ms)"), ("_ns", " (ns)"), ("_s", " (s)"))


@dataclass
class Results:
    """Tables are None where the file is absent."""

    folder: Path
    name: str
    axes: list  # sweep axes, in grid order
    summary: pd.DataFrame = None
    requests: pd.DataFrame = None
    timeline: pd.DataFrame = None
    validation: pd.DataFrame = None
    throughput: pd.DataFrame = None
    validation_steps: pd.DataFrame = None
    steps: pd.DataFrame = None
    heads: pd.DataFrame = None
    points: pd.DataFrame = None
    claims: pd.DataFrame = None
    search: pd.DataFrame = None
    prompts: pd.DataFrame = None

    @functools.cached_property
    def source(self):
        """The origin of the numbers: 'Simulated: llama-3.1-8b on L40S.'; "" if the folder does not say."""
        model, hardware = setting.run_model(self.folder), setting.run_hardware(self.folder)
        hosts = set(self.summary["host"]) if "host" in self.axes else {self.host}
        by = {"sim": "Simulated", "engine": "Measured in the engine"}.get(hosts.pop() if len(hosts) == 1 else "", "Simulated and measured in the engine")
        return f"{by}: {model_name(model)}{f' on {hardware}' if hardware else ''}." if model else ""

    @property
    def search_attainment(self):
        """The share of requests that a search for the highest rate wants within the SLO; the program's default where the file has none."""
        search = setting.resolved(self.folder).get("search")
        found = search.get("attainment") if isinstance(search, dict) else None
        return found if isinstance(found, (int, float)) else 0.9

    @functools.cached_property
    def host(self):
        return setting.resolved(self.folder).get("host", "sim")

    @functools.cached_property
    def slo_ms(self):
        """Limits of the SLO by metric, where they are known."""
        return setting.slo_ms(self.folder)

    @property
    def is_hit_ratio(self):
        return self.summary is not None and "lookups" in self.summary.columns

    @property
    def is_replay(self):
        """KV policies on recorded attention."""
        return self.measures_attention and not self.is_accuracy and "ttft_p50_ms" not in self.summary.columns

    @property
    def is_accuracy(self):
        """A model's answers under KV policies: rows are runs by tasks and lengths."""
        return self.summary is not None and "exact_match_frac" in self.summary.columns

    @property
    def measures_attention(self):
        """Runs say how much attention their KV policy keeps: replays, and serving with `samples`."""
        return self.summary is not None and "attention_mass" in self.summary.columns

    @property
    def is_points(self):
        """Measured points, simulated: kvlab validate --points."""
        return self.points is not None and self.summary is None

    @property
    def is_claims(self):
        """Published figures beside the simulator's: kvlab reproduce --out."""
        return self.claims is not None and self.summary is None

    def rate_axis(self):
        """The axis that says how much load is offered, or None."""
        numeric = [a for a in self.axes if is_numeric(self.summary[a])]
        for suffix in ("rate_per_s", "rate", "concurrency"):
            for axis in numeric:
                if axis.split(".")[-1].endswith(suffix):
                    return axis
        return None

    def need(self, table, columns, purpose):
        """Stops with one line if a table lacks columns."""
        missing = [c for c in columns if c not in getattr(self, table).columns]
        if missing:
            raise ResultsError(f"{self.folder / table}.csv: no column '{missing[0]}', which {purpose} needs; written by another version of kvlab?")


def is_numeric(column):
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def axis_title(axis):
    """A path such as trace.arrival.poisson.rate_per_s as an axis label: 'Rate (requests/s)'."""
    last = axis.split(".")[-1]
    if last in ("tp", "pp", "dp", "ep"):
        return last.upper()
    for suffix, unit in _UNITS:
        if last.endswith(suffix):
            stem = last[: -len(suffix)].replace("_", " ").strip()
            return (stem + unit).strip().capitalize().replace("Kv ", "KV ").replace("Gpu ", "GPU ") if stem else unit.strip()
    return last.replace("_", " ").capitalize().replace("Kv ", "KV ").replace("Gpu ", "GPU ")


def value_text(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{int(value)}" if value.is_integer() else f"{value:g}"
    return _policy_text(str(value))


def _policy_text(text):
    """{sarathi: {chunk_tokens: 512}} as 'sarathi (chunk_tokens 512)'."""
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    match = re.fullmatch(r"(\w+): \{(.*)\}", inner)
    return f"{match[1]} ({match[2].replace(': ', ' ')})" if match else text


def slug(text):
    """A label as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_")


def label_of(row, axes, alone):
    """Text values need no name, numbers need their axis' name. `alone`: a single axis, whose name the reader knows.
    An axis that the run does not have (a parameter of another policy) is left out."""
    parts = []
    for axis in (a for a in axes if not pd.isna(row[a])):
        text = value_text(row[axis])
        plain = isinstance(row[axis], str) or alone
        parts.append(text if plain else f"{axis.split('.')[-1]} {text}")
    return ", ".join(parts)


def _without_marks(rows):
    """Takes away the mark of text that a spreadsheet would compute."""
    for column in rows.select_dtypes(exclude=["number", "bool"]).columns:
        rows[column] = rows[column].map(lambda v: v[1:] if isinstance(v, str) and re.match("'+[=+@-]", v) else v)
    return rows


def _read(folder, table):
    path = folder / f"{table}.csv"
    if not path.exists():
        return None
    try:
        rows = pd.read_csv(path, dtype=_CSV[table], converters={"task": str})  # a task may be called NA
        return _without_marks(rows) if table == "summary" else rows
    except pd.errors.EmptyDataError:
        raise ResultsError(f"{path}: empty, not even a header line") from None
    except (pd.errors.ParserError, ValueError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path}: not a table: {str(error).splitlines()[0]}") from None


def _axes(summary, path):
    """Axes are between `run` and `seed`; results without time once had no seed but `lookups`."""
    columns = list(summary.columns)
    end = next((c for c in ("seed", "lookups") if c in columns), None)
    if not columns or columns[0] != "run" or end is None:
        raise ResultsError(f"{path}: expected columns 'run', the sweep axes, then 'seed'; found {', '.join(columns[:4])}")
    return columns[1 : columns.index(end)]


def _name(folder):
    try:
        return json.loads((folder / "manifest.json").read_text()).get("experiment") or folder.name
    except (OSError, ValueError, AttributeError):
        return folder.name


def _name_policies(results):
    """Serving's tables say of each policy what it is, in one column; a budget that varies beside it stays an axis."""
    if not {"kv_policy", "kv_policy.recipe"} <= set(results.axes) or results.is_replay or results.is_accuracy:
        return results
    kept = [a for a in results.axes if a == "kv_policy.budget_tokens" and results.summary[a].nunique() > 1]
    told = [a for a in results.axes if a.startswith("kv_policy.") and a not in kept]

    def names(rows):
        named = add_names(rows.drop(columns="recipe", errors="ignore"), results.axes)
        has_axis = rows[kept].notna().any(axis=1)
        return [p if own else full_name(p, b) for p, b, own in zip(named["policy"], named["budget"], has_axis)]

    results.summary["kv_policy"] = names(results.summary)
    if results.validation is not None and "kv_policy.recipe" in results.validation.columns:
        results.validation["kv_policy"] = names(results.validation)
        results.validation = results.validation.drop(columns=told, errors="ignore")
    results.axes = [a for a in results.axes if a not in told]
    return results


def load(folder):
    folder = Path(folder)
    if not folder.is_dir():
        raise ResultsError(f"{folder}: no such folder; it is written by: ./kvlab run experiments/NAME.yaml")
    tables = {table: _read(folder, table) for table in _CSV}
    if all(t is None for t in tables.values()):
        raise ResultsError(f"{folder}: no summary.csv; not a results folder?")
    folder_name = _name(folder.resolve())
    results = Results(folder, folder_name, [], **tables)
    if results.summary is not None:
        results.axes = _axes(results.summary, folder / "summary.csv")
        results.summary = add_names(results.summary, results.axes)
    return _name_policies(results)
