"""A request's life from requests.csv and the tables beside it: how long it queued, prefilled and decoded, was preempted, had its KV on a
link, and took part in steps that did the KV policy's work."""

import json
import re

import numpy as np
import pandas as pd

_SLOWEST = 5  # if not all fit: one in this many is chosen for its end-to-end latency
_MOST_TRACE_BYTES = 64 << 20
PHASES = ("queued", "prefill", "decode", "preempted", "transfer", "policy")
_COLUMNS = (
    "run request replica session arrival_ns scheduled_ns first_token_ns last_token_ns prompt_tokens output_tokens hit_tokens preemptions "
    "recomputed_tokens state"
).split()
_POLICY = {"prefill": "prefill_policy_ns", "decode": "decode_policy_ns"}  # columns of runs whose KV policy takes time
_STATES = ("completed", "rejected", "unfinished")


def chosen_requests(tables, most):
    """Numbers of the requests to show where `tables` (one per run) have more than `most` rows: the same in every run, so that runs can be
    compared. A part are the slowest of any run, the rest is spread evenly. None: all fit."""
    total = sum(map(len, tables))
    if total <= most:
        return None
    if most < len(tables):
        return set()
    slowest = pd.concat([(t["last_token_ns"] - t["arrival_ns"]).groupby(t["request"]).max() for t in tables]).groupby(level=0).max()
    each = most // len(tables)
    slow = slowest.nlargest(each // _SLOWEST).index
    rest = np.setdiff1d(slowest.index, slow)
    spread = rest[np.linspace(0, len(rest) - 1, min(len(rest), each - len(slow))).round().astype(int)] if len(rest) else rest
    return set(slow) | set(spread)


def _of_transfers(folder):
    """{run: {request: [(kind, begin, end)]}} in ns: from the time that the KV was complete on the sender to its arrival."""
    path, found = folder / "transfers.csv", {}
    if path.exists():
        for t in pd.read_csv(path, dtype={"run": str}).to_dict("records"):
            found.setdefault(t["run"], {}).setdefault(t["request"], []).append(("transfer", t["ready_ns"], t["end_ns"]))
    return found


def _of_trace(events):
    """{request: [(kind, begin, end)]}: from each preemption or swap in a Perfetto trace to the next step planned with the request."""
    steps, lost = {}, []
    for e in events:
        if e.get("ph") == "X" and "batch" in e.get("args", {}):
            for entry in e["args"]["batch"].split():
                steps.setdefault(int(entry.split(":")[0]), []).append((e["args"]["planned_us"], round(1000 * e["ts"])))
        elif e.get("ph") == "i" and re.match(r"(preempted|swapped out) \d+$", e["name"]):
            lost.append((int(e["name"].split()[-1]), e["ts"]))
    found = {}
    for request, at in lost:
        after = [begin for planned, begin in steps.get(request, ()) if planned > at]  # a step planned before may still be in flight
        if after:
            found.setdefault(request, []).append(("preempted", round(1000 * at), min(after)))
    return found


def _of_preemptions(folder, run):
    """The same by request, where the run has a Perfetto trace; None where there is none, or it is too large."""
    path = folder / "runs" / run / "trace.json"
    if not path.is_file() or path.stat().st_size > _MOST_TRACE_BYTES:
        return None
    return _of_trace(json.loads(path.read_text())["traceEvents"])


def parts(begin, scheduled, first, last, extra):
    """[(kind, begin, end)] that cover a life from `begin` to `last` without gaps: `extra` intervals cut pieces out of the three phases, a
    preemption before a transfer. An instant that never came (NaN) ends the life."""
    bounds = [t for t in (begin, scheduled, first, last) if not np.isnan(t)]
    end = bounds[-1]
    cuts = sorted({*bounds, *(min(max(t, begin), end) for _, a, b in extra for t in (a, b))})
    result = []
    for a, b in zip(cuts, cuts[1:]):
        over = [kind for kind in ("preempted", "transfer") if any(k == kind and s <= a and b <= e for k, s, e in extra)]
        kind = over[0] if over else PHASES[sum(a >= t for t in bounds[1:-1])]
        if result and result[-1][0] == kind:
            result[-1] = (kind, result[-1][1], b)
        else:
            result.append((kind, a, b))
    return result


def has_policy_times(rows):
    """The run's simulation recorded the time of the KV policy's work. In a joined table the rows of other runs are empty there."""
    return all(c in rows and rows[c].notna().all() for c in _POLICY.values())


def _take_policy(rows, columns):
    """Takes the policy's time, in whole µs, out of prefill and decode. The phases are differences of rounded instants, so that they may be
    shorter than the policy's time by less than 1 µs."""
    for phase, column in _POLICY.items():
        whole = np.array(columns[f"{phase}_us"])
        own = np.clip(rows[column].to_numpy(dtype=np.int64) // 1000, 0, np.maximum(whole, 0))
        columns[f"{phase}_us"] = (whole - own).tolist()
        columns[f"{phase}_policy_us"] = own.tolist()
    columns["policy_us"] = [sum(both) for both in zip(*(columns[f"{phase}_policy_us"] for phase in _POLICY))]


def _columns_of(rows, extras):
    """Columns of one run; durations are µs, -1 where an instant never came. Columns of zeros alone are left out."""
    times = rows[["arrival_ns", "scheduled_ns", "first_token_ns", "last_token_ns"]].to_numpy(dtype=float)
    ends = np.where(np.isnan(times), -1, np.round(times / 1000)).astype(int)
    base = np.where((ends[:, 1:] < 0) | (ends[:, :-1] < 0), -1, np.diff(ends, axis=1))
    columns = {
        "request": rows["request"].tolist(),
        "arrival_us": ends[:, 0].tolist(),
        **{f"{p}_us": base[:, i].tolist() for i, p in enumerate(PHASES[:3])},
    }
    columns["ttft_us"] = np.where((ends[:, 0] < 0) | (ends[:, 2] < 0), -1, ends[:, 2] - ends[:, 0]).tolist()
    segments, more = {}, np.zeros((len(rows), 2), dtype=int)
    for i, request in enumerate(rows["request"]):
        if request in extras and not np.isnan(times[i, 1:]).all():
            own = [(kind, round(a / 1000), round(b / 1000)) for kind, a, b in parts(*times[i], extras[request])]
            segments[str(request)] = [[PHASES.index(kind), a, b] for kind, a, b in own]
            for p, phase in enumerate(PHASES):
                total = sum(b - a for kind, a, b in own if kind == phase)
                if phase in ("preempted", "transfer"):
                    more[i, p - 3] = total
                elif p < 3 and base[i, p] >= 0:
                    columns[f"{phase}_us"][i] = total
    columns |= {"preempted_us": more[:, 0].tolist(), "transfer_us": more[:, 1].tolist()}
    if has_policy_times(rows):
        _take_policy(rows, columns)
    columns |= {
        c: rows[c].fillna(0).astype(int).tolist()
        for c in ("replica", "prompt_tokens", "output_tokens", "hit_tokens", "preemptions", "recomputed_tokens")
    }
    columns["state"] = [_STATES.index(s) if s in _STATES else len(_STATES) for s in rows["state"]]
    columns["session"] = rows["session"].fillna("").tolist()
    kept = {k: v for k, v in columns.items() if k in ("request", "arrival_us") or any(v)}
    return {"columns": kept, "segments": segments}


def _with_groups(rows, groups):
    return rows.merge(groups, on=["run", "request"], how="left") if groups is not None else rows


def _groups(folder):
    """Client and class of requests, where the trace has them; text, since a client may be a hash of more than 53 bits."""
    path = folder / "request_groups.csv"
    return pd.read_csv(path, dtype={"run": str, "client": str, "class": str}, keep_default_na=False) if path.exists() else None


def tables_of(results):
    """{run: its rows of requests.csv, by request}, of the runs that have any."""
    if results.requests is None or results.requests.empty:
        return {}
    results.need("requests", _COLUMNS, "the request explorer")
    rows = _with_groups(results.requests, _groups(results.folder))
    return {run: part.sort_values("request", kind="stable") for run, part in rows.groupby("run", sort=False)}


def lives(results, tables, chosen):
    """{run: data for the page}; `chosen`: numbers of the requests to show, None for all."""
    transfers, found = _of_transfers(results.folder), {}
    for run, rows in tables.items():
        shown = rows if chosen is None else rows[rows["request"].isin(chosen)]
        preempted = _of_preemptions(results.folder, run) if shown["preemptions"].any() else {}
        extras = {request: list(own) for request, own in (preempted or {}).items()}
        for request, own in transfers.get(run, {}).items():
            extras.setdefault(request, []).extend(own)
        data = _columns_of(shown, extras)
        for group in ("client", "class"):
            if group in shown and shown[group].fillna("").astype(bool).any():
                data["columns"][group] = shown[group].fillna("").tolist()
        found[run] = {**data, "total": len(rows), "has_preempted_times": preempted is not None, "has_policy_times": has_policy_times(shown)}
    return found
