"""Invariants of a results folder: what holds for every experiment, whatever its policies. Each check yields the sentences of what it found."""

import csv
from pathlib import Path

SLACK = 1e-6
# Bytes over those of the whole cache (docs/results.md): above 1 where a recipe stores codes or indexes besides keys and values.
OF_WHOLE_CACHE = {"resident_bytes_frac", "peak_prefill_frac", "disk_bytes_frac", "host_bytes_frac"}


def rows(folder, name):
    path = Path(folder, name)
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def number(text):
    return None if text in ("", None) else float(text)


def check_values(folder):
    """No number is nan or infinite, and shares are between 0 and 1."""
    for path in sorted(Path(folder).glob("*.csv")):
        for i, row in enumerate(rows(folder, path.name)):
            for column, text in row.items():
                for part in (text or "").split("/"):
                    if part.lower().lstrip("-") in ("nan", "inf", "infinity"):
                        yield f"{path.name} row {i}: {column} is {text}"
                if column.endswith("_frac") and column not in OF_WHOLE_CACHE and path.name in ("summary.csv", "pools.csv", "links.csv"):
                    for part in (text or "").split("/"):
                        if part and not -SLACK <= float(part) <= 1 + SLACK:
                            yield f"{path.name} row {i}: {column} is {text}"


def check_requests(folder):
    """A request's instants are in order, it emits no more than one token per instant that exists, and it is there once.

    A decode replica may reject a request after the prefill replica's token."""
    seen, most_of_rejected = set(), 1 if Path(folder, "links.csv").exists() else 0
    for row in rows(folder, "requests.csv"):
        name = (row["run"], row["request"])
        if name in seen:
            yield f"requests.csv: request {row['request']} is there twice"
        seen.add(name)
        instants = [float(row[c]) for c in ("arrival_ns", "queued_ns", "scheduled_ns", "first_token_ns", "last_token_ns") if row[c]]
        if instants != sorted(instants):
            yield f"requests.csv: instants of request {row['request']} go backwards: {instants}"
        out = int(row["output_tokens"])
        if row["state"] == "completed" and (out < 1 or not row["last_token_ns"]):
            yield f"requests.csv: request {row['request']} is completed with {out} tokens"
        if row["state"] == "rejected" and out > most_of_rejected:
            yield f"requests.csv: request {row['request']} is rejected with {out} tokens"
        if int(row["hit_tokens"]) > int(row["prompt_tokens"]):
            yield f"requests.csv: request {row['request']} hits {row['hit_tokens']} of {row['prompt_tokens']} tokens"
        if out == 1 and row["first_token_ns"] != row["last_token_ns"]:
            yield f"requests.csv: the only token of request {row['request']} has two instants"


def check_summary(folder):
    """Counts and rates of the summary are those of the requests, and its percentiles are in order."""
    by_run = {}
    for row in rows(folder, "requests.csv"):
        by_run.setdefault(row["run"], []).append(row)
    for row in rows(folder, "summary.csv"):
        if "completed" not in row:
            continue
        yield from check_counts(row, by_run.get(row["run"], []), folder)
        yield from check_percentiles(row)
        shares = [number(row.get(f"step_{p}_frac")) for p in ("linear", "attention", "head", "collective", "policy")]
        if None not in shares and int(row["steps"]) > 0 and abs(sum(shares) - 1) > 1e-5:
            yield f"summary.csv: shares of step time add up to {sum(shares)}"
        basis = [number(row.get(f"{p}_frac")) for p in ("inside", "interpolated", "extrapolated")]
        if None not in basis and int(row["steps"]) > 0 and abs(sum(basis) - 1) > 1e-5:
            yield f"summary.csv: shares of the basis add up to {sum(basis)}"
        goodput, rate = number(row.get("goodput_per_s")), number(row["requests_per_s"])
        if goodput is not None and rate is not None and goodput > rate * (1 + 1e-5) + 1e-6:
            yield f"summary.csv: goodput {goodput} is above {rate} requests/s"


def check_counts(row, requests, folder):
    counted = {state: sum(r["state"] == state for r in requests) for state in ("completed", "rejected", "unfinished")}
    whole = "warmup_ms" not in Path(folder, "resolved.yaml").read_text()
    if requests and whole:
        if int(row["requests"]) != len(requests):
            yield f"summary.csv: {row['requests']} requests, requests.csv has {len(requests)}"
        for column in ("completed", "rejected"):
            if int(row[column]) != counted[column]:
                yield f"summary.csv: {row[column]} {column}, requests.csv has {counted[column]}"
        duration, tokens = number(row["duration_s"]), sum(int(r["output_tokens"]) for r in requests if r["state"] == "completed")
        rate = number(row["output_tokens_per_s"])
        if duration and rate is not None and abs(rate * duration - tokens) > 1e-4 * tokens + 1e-5 * duration + 1e-6 * rate + 0.01:
            yield f"summary.csv: {rate} tokens/s for {duration} s are not {tokens} tokens"
        yield from check_latencies(row, requests)
    if int(row["completed"]) + int(row["rejected"]) > int(row["requests"]):
        yield f"summary.csv: {row['completed']} completed and {row['rejected']} rejected of {row['requests']}"


def check_latencies(row, requests):
    """Means and maxima of the summary are those of the requests."""
    done = [r for r in requests if r["state"] == "completed"]
    for name, last in (("ttft", "first_token_ns"), ("e2e", "last_token_ns"), ("queueing", "scheduled_ns")):
        times = [(int(r[last]) - int(r["arrival_ns"])) / 1e6 for r in done]
        for part, ours in (("mean", sum(times) / len(times)), ("max", max(times))) if times else ():
            stated = number(row[f"{name}_{part}_ms"])
            if stated is None or abs(stated - ours) > 1e-4 * ours + 1e-5:
                yield f"summary.csv: {name}_{part}_ms is {stated}, of the requests {ours}"
    preempted, stated = sum(int(r["preemptions"]) for r in requests), int(row["preemptions"])
    if preempted != stated:
        yield f"summary.csv: {stated} preemptions, those of the requests are {preempted}"


def check_percentiles(row):
    for column in [c for c in row if c.endswith("_p50_ms") or c.endswith("_p50_ms_per_token")]:
        values = [number(row[column.replace("_p50_", f"_{p}_")]) for p in ("p50", "p90", "p95", "p99", "max")]
        if None in values:
            continue
        if any(a > b * (1 + 1e-9) + 1e-6 for a, b in zip(values, values[1:])):
            yield f"summary.csv: percentiles of {column} fall: {values}"
        if number(row[column.replace("_p50_", "_mean_")]) > values[-1] * (1 + 1e-9) + 1e-6:
            yield f"summary.csv: the mean of {column} is above the maximum"


def check_timeline(folder):
    """Blocks add up, and tokens of the samples are those of the requests where all were completed."""
    blocks = {}
    for row in rows(folder, "timeline.csv"):
        total = sum(int(row[c]) for c in ("used_blocks", "cached_blocks", "free_blocks"))
        key = (row["run"], row["replica"])
        if blocks.setdefault(key, total) != total:
            yield f"timeline.csv: blocks of replica {row['replica']} add up to {blocks[key]} and to {total}"
        for column in ("running", "waiting", "swapped", "used_blocks", "cached_blocks", "free_blocks"):
            if int(row[column]) < 0:
                yield f"timeline.csv: {column} is {row[column]}"


def check_transfers(folder):
    """Bytes that leave are bytes that arrive, and those of the transfers; each transfer ends after it was asked for."""
    sums = {"out": 0, "in": 0}
    for row in rows(folder, "links.csv"):
        sums[row["direction"]] += int(row["bytes"])
    if sums["out"] != sums["in"]:
        yield f"links.csv: {sums['out']} bytes leave and {sums['in']} arrive"
    for row in rows(folder, "transfers.csv"):
        if not (int(row["asked_ns"] or 0) <= int(row["end_ns"] or 2**62)):
            yield f"transfers.csv: a transfer of request {row['request']} ends before it begins"


CHECKS = (check_values, check_requests, check_summary, check_timeline, check_transfers)


def problems(folder):
    return [f"{check.__name__}: {text}" for check in CHECKS for text in check(folder)]


def unequal_files(a, b):
    """Tables of two folders that do not have the same bytes."""
    names = sorted({p.name for folder in (a, b) for p in Path(folder).glob("*.csv")})
    return [n for n in names if not (Path(a, n).exists() and Path(b, n).exists() and Path(a, n).read_bytes() == Path(b, n).read_bytes())]
