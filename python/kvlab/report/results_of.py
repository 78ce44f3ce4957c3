"""Everything that the page shows of one or two results folders, as data."""

import json
from pathlib import Path

import pandas as pd

import answers
import entries
import joined
import kv
import lives
import naming
import serving
import setting
import spec
import tables
import timeline
import why
from groups import label_of
from load import ResultsError, load

MOST_TIMELINES = 200  # runs of a page
_GAUGES = ("running", "waiting", "kv_used", "prompt_tokens_per_s", "output_tokens_per_s")
_DONE = ("done", "unchanged")


def _manifest(folder):
    path = folder / "manifest.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultsError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ResultsError(f"{path}: holds no manifest")
    return found


def _kind(results):
    """The kind of these results; an error where no report is made of them."""
    if results.summary is None:
        for name in ("points", "claims", "validation"):
            if getattr(results, name) is not None:
                return name
        raise ResultsError(f"{results.folder}: no summary.csv; not a results folder?")
    columns = set(results.summary.columns)
    for kind, is_it in (
        ("accuracy", results.is_accuracy),
        ("cache", results.is_hit_ratio),
        ("replay", results.is_replay),
        ("serving", "ttft_p50_ms" in columns),
    ):
        if is_it:
            return kind
    raise ResultsError(
        f"{results.folder / 'summary.csv'}: of no kind that a report is made of: no column 'ttft_p50_ms' (serving), "
        "'lookups' (block caches), "
        "'attention_mass' (replay) or 'exact_match_frac' (graded answers); written by another version of kvlab?"
    )


def _figures(results, kind):
    own = {
        "accuracy": kv.graded,
        "replay": kv.replay,
        "points": kv.measured_points,
        "claims": kv.published,
        "validation": serving.validations,
    }
    with naming.of_results(results):
        return own.get(kind, serving.figures_of)(results)


def _runs_of(results):
    """A row per run of the summary: its label, with the seed where there are several, and its KV policy's share of step time. Points of the
    grid that are one run have the label of the first."""
    if results.summary is None or results.summary.empty:
        return []
    rows = results.summary
    varying = [a for a in results.axes if rows[a].nunique(dropna=False) > 1] or results.axes[:1]
    has_seeds = "seed" in rows and rows["seed"].nunique() > 1
    runs, records = {}, rows.to_dict("records")
    with naming.of_results(results):
        texts = naming.named([label_of(row, varying, False) or results.name for row in records])
    for row, text in zip(records, texts):
        label = f"{text}, seed {row['seed']}" if has_seeds else text
        policy = spec.numbers([row.get("step_policy_frac", 0)])[0] or 0
        runs.setdefault(row["run"], {"id": row["run"], "label": label, "seed": str(row.get("seed", "")), "policy_frac": policy})
    return list(runs.values())


def _share(rows, column):
    """'0.0' or '0.0 to 97.7' percent of a column; "" where it is absent or empty."""
    values = pd.to_numeric(rows[column], errors="coerce").dropna() if column in rows else ()
    if not len(values):
        return ""
    low, high = f"{100 * values.min():.1f}", f"{100 * values.max():.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _credibility(results, manifest):
    """A line per source of step times, as `kvlab run` prints it."""
    sources = {}
    for run in manifest.get("runs", []):
        if run.get("cost_source"):
            sources.setdefault(run["cost_source"], []).append(run["run"])
    lines = []
    for source, runs in sources.items() if results.summary is not None else ():
        rows = results.summary[results.summary["run"].isin(runs)]
        shares = [
            f"{_share(rows, c)} {name}"
            for c, name in (("inside_frac", "measured"), ("interpolated_frac", "interpolated"), ("extrapolated_frac", "extrapolated"))
            if _share(rows, c)
        ]
        blocks = (
            f"KV blocks {' or '.join(sorted(rows['kv_blocks_source'].astype(str).unique()))}"
            if "kv_blocks_source" in rows and len(rows)
            else ""
        )
        overload = f"overload {_share(rows, 'overload_frac')} of time" if _share(rows, "overload_frac") else ""
        lines.append("; ".join(filter(None, (f"step time {', '.join(shares)}" if shares else "", overload, blocks, source))))
    return lines


def _remarks(manifest):
    """Notes, skipped rows and requests that were not served, each once, with its runs."""
    found = {}
    for run in manifest.get("runs", []):
        for key, name in (("note", "note"), ("skipped", "skipped"), ("not_served", "not served")):
            sentences = run.get("notes") if key == "note" and run.get("notes") else [run[key]] if run.get(key) else []
            for sentence in sentences:
                found.setdefault((name, sentence), []).append(run["run"])
    return [{"kind": kind, "text": text, "runs": runs} for (kind, text), runs in found.items()]


def _quoted(text):
    return text if text and all(c.isalnum() or c in "-_./=:" for c in text) else "'" + text.replace("'", "'\\''") + "'"


def _command(manifest):
    if not manifest.get("file"):
        return ""
    return " ".join(["./kvlab run", _quoted(manifest["file"]), *(f"--set {_quoted(s)}" for s in manifest.get("set", []))])


def _about(results, kind, manifest, number):
    """A result beside its figures: tables, runs, remarks, provenance."""
    resolved = results.folder / "resolved.yaml"
    failed = [
        {"axes": r.get("axes", {}), "run": r.get("run", ""), "state": r.get("state", ""), "error": r.get("error", "")}
        for r in manifest.get("runs", [])
        if r.get("state", "done") not in _DONE
    ]
    head = {k: v for k, v in manifest.items() if k != "runs"}
    return {
        "folder": results.folder.name,
        "kind": kind,
        "number": number,
        "manifest": head,
        "runs": manifest.get("runs", []),
        "command": _command(manifest),
        "failed": failed,
        "credibility": _credibility(results, manifest),
        "remarks": _remarks(manifest),
        "resolved": resolved.read_text(encoding="utf-8", errors="replace") if resolved.is_file() else "",
        "slo_ms": results.slo_ms,
        "summary": tables.summary(results) if results.summary is not None else None,
        "tables": [*tables.others(results.folder), *filter(None, [answers.table_of(results.folder)])],
    }


def _timeline(rows):
    table = timeline.of_run(rows)
    return {"time_s": spec.numbers(table["time_s"]), **{g: spec.numbers(table[g]) for g in _GAUGES}}


def _runs(everything, most_requests, left_out):
    """A list of runs of all results with what the page has of each."""
    asked = [lives.tables_of(results) for results in everything]
    flat = [t for own in asked for t in own.values()]
    chosen = lives.chosen_requests(flat, most_requests) if flat else None
    if chosen is not None:
        left_out.append(
            f"requests: {sum(t['request'].isin(chosen).sum() for t in flat)} of {sum(map(len, flat))} are in the explorer, the same numbers "
            "in every run: the slowest, and others evenly spaced (figures and the summary are of all requests)"
        )
    runs = []
    for number, (results, own) in enumerate(zip(everything, asked)):
        found = lives.lives(results, own, chosen)
        samples = dict(list(results.timeline.groupby("run"))) if results.timeline is not None else {}
        for run in _runs_of(results):
            runs.append({**run, "result": number, "lives": found.get(run["id"]), "samples": samples.get(run["id"])})
    with_samples = [r for r in runs if r["samples"] is not None]
    if len(with_samples) > MOST_TIMELINES:
        left_out.append(f"timelines: of {MOST_TIMELINES} of {len(with_samples)} runs, the first ones")
    for place, run in enumerate(with_samples):
        run["timeline"] = _timeline(run["samples"]) if place < MOST_TIMELINES else None
    for run in runs:
        del run["samples"]
    return [r for r in runs if r["lives"] or r.get("timeline")]


def _names(everything):
    """Names of the results, told apart by their folders where they are the same."""
    names = [r.name for r in everything]
    if len(set(names)) < len(names):
        names = [f"{r.name} ({r.folder.name})" for r in everything]
    return names if len(set(names)) == len(names) else [f"{n}, {letter}" for n, letter in zip(names, "AB")]


def _name_kept(everything, left_out):
    for results in everything:
        keep = (setting.resolved(results.folder).get("output") or {}).get("keep")
        if keep == "summary":
            left_out.append(f"requests and timelines of {results.name}: its runs have 'output: {{keep: summary}}'; without this key the page has them")


def _count_rows(abouts, left_out):
    for about in abouts:
        for table in filter(None, (about["summary"], *about["tables"])):
            if table["total"] > len(table["rows"]):
                left_out.append(f"{about['name']}, {table['name']}: rows after the first {len(table['rows'])} of {table['total']}")


def _count_lines(figures, left_out):
    for each in figures:
        cut = [o["note"] for o in each["options"] if o["note"].startswith("Not drawn") or " Not drawn" in o["note"]]
        if cut:
            left_out.append(f"{each['title']}: lines after {serving.MOST_LINES} of a figure")


def data_of(folders, most_requests, has_tries=False):
    """`most_requests`: in the explorer, of all runs together; `has_tries`: other settings are tried (why.py). Raises ResultsError where a folder holds no results, or results of no kind
    that a report is made of."""
    folders, left_out = [Path(f) for f in folders], []
    everything = [entries.show_in(load(folder)) for folder in folders]
    kinds, manifests = [_kind(results) for results in everything], [_manifest(folder) for folder in folders]
    names = _names(everything)
    figures = [_figures(results, kind) for results, kind in zip(everything, kinds)]
    together, remarks = joined.figures_of(everything)
    left_out += remarks
    figures = spec.finish([*together, *(spec.join(figures, names) if len(figures) > 1 else figures[0])])
    runs = _runs(everything, most_requests, left_out)
    abouts = [{**_about(r, k, m, i), "name": n} for i, (r, k, m, n) in enumerate(zip(everything, kinds, manifests, names))]
    for about, results, kind in zip(abouts, everything, kinds):
        about["why"] = why.of_folder(results.folder, len(about["runs"]), has_tries) if kind == "serving" else {"best": "", "runs": []}
    _name_kept(everything, left_out)
    _count_rows(abouts, left_out)
    _count_lines(figures, left_out)
    return {
        "title": " and ".join(names),
        "results": abouts,
        "figures": figures,
        "runs": runs,
        "phases": list(lives.PHASES),
        "left_out": left_out,
    }
