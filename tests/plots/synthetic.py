"""Results folders with made-up numbers in the format of docs/results.md, for tests of the figures."""

import csv
import itertools
import json
from pathlib import Path

import numpy as np

METRICS = ("ttft", "tpot", "itl", "e2e", "queueing")
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
REQUESTS = ("run request replica session arrival_ns queued_ns scheduled_ns first_token_ns last_token_ns prompt_tokens output_tokens "
            "hit_tokens preemptions recomputed_tokens state").split()
TIMELINE = "run replica time_ns running waiting swapped used_blocks cached_blocks free_blocks prompt_tokens output_tokens".split()
REST = ("slo_attainment_frac goodput_per_s preemptions swaps recompute_fallbacks recomputed_tokens prefix_hit_frac batch_mean_requests batch_mean_tokens "
        "kv_used_mean_frac kv_used_peak_frac kv_blocks kv_blocks_source steps busy_frac step_linear_frac step_attention_frac step_head_frac "
        "step_collective_frac step_policy_frac mfu_frac mbu_frac inside_frac interpolated_frac extrapolated_frac overload_frac "
        "internal_fragmentation_frac external_fragmentation_frac").split()


def write_csv(path, header, rows):
    with open(path, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(header)
        out.writerows(rows)


def statistics(values):
    if len(values) == 0:
        return [""] * len(STATISTICS)
    return [np.mean(values), *np.percentile(values, (50, 90, 95, 99)), np.max(values)]


def one_run(run, rng, rate, speed, num_requests):
    """Requests of a queue that slows down with load; returns their rows and latencies in ms."""
    arrival = np.cumsum(rng.exponential(1e9 / rate, num_requests)).astype(np.int64)
    load = min(0.97, rate / (12 * speed))
    queueing = rng.gamma(1.2, 40 * load / (1 - load), num_requests)
    ttft = queueing + rng.lognormal(4.0, 0.5, num_requests) / speed
    output = rng.integers(1, 400, num_requests)
    tpot = rng.normal(14 / speed * (1 + load), 1.5, num_requests).clip(5)
    first = arrival + (ttft * 1e6).astype(np.int64)
    last = first + (tpot * 1e6 * (output - 1)).astype(np.int64)
    rows = [[run, i, i % 2, "", arrival[i], arrival[i] + 1000, arrival[i] + int(queueing[i] * 1e6), first[i], last[i], 512, output[i], 0, 0, 0, "completed"]
            for i in range(num_requests)]
    latencies = {"ttft": ttft, "tpot": tpot[output > 1], "itl": tpot, "e2e": (last - arrival) / 1e6, "queueing": queueing}
    return rows, latencies, (last.max() - arrival.min()) / 1e9 if num_requests else 0.0


def timeline_rows(run, rng, seconds, replicas=2, blocks=2000):
    rows = []
    for i, replica in itertools.product(range(1, int(seconds * 4)), range(replicas)):
        wave = 0.5 + 0.4 * np.sin(i / 35 + len(run))
        used = int(blocks * wave * rng.uniform(0.93, 1.0))
        rows.append([run, replica, i * 250_000_000, int(40 * wave + rng.integers(0, 5)), int(max(0, rng.normal(12 * (wave - 0.6), 2))), 0,
                     used, (blocks - used) // 2, blocks - used - (blocks - used) // 2, int(900 * wave), int(rng.normal(500, 60) * wave)])
    return rows


def write_runs(folder, axes, seeds=(1,), num_requests=300, slo=True):
    """`axes`: name -> values; the axis ending in rate_per_s sets the load, a text axis the speed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    summary, requests, timeline = [], [], []
    for number, (*values, seed) in enumerate(itertools.product(*axes.values(), seeds), start=1):
        run = f"{number:04d}"
        point = dict(zip(axes, values))
        rate = next((v for k, v in point.items() if k.endswith("rate_per_s")), 8.0)
        text = next(((list(axes[k]).index(v)) for k, v in point.items() if isinstance(v, str)), 0)
        rows, latency, duration = one_run(run, np.random.default_rng(1000 * number + seed), rate, 1 + 0.12 * text, num_requests)
        requests += rows
        timeline += timeline_rows(run, np.random.default_rng(number), min(60, duration))
        rates = [num_requests / duration, 512 * num_requests / duration, 200 * num_requests / duration] if duration else ["", "", ""]
        met = float(np.mean(latency["ttft"] < 250)) if num_requests else 0.0
        rest = dict.fromkeys(REST, 0.1) | {"kv_blocks_source": "given", "slo_attainment_frac": met if slo else "", "goodput_per_s": met * rate if slo else ""}
        summary.append([run, *values, seed, num_requests, num_requests, 0, duration, *rates,
                        *(s for m in METRICS for s in statistics(latency[m])), *statistics(latency["e2e"] / 200), *rest.values()])
    columns = [f"{m}_{s}_ms" for m in METRICS for s in STATISTICS] + [f"normalized_latency_{s}_ms_per_token" for s in STATISTICS]
    counts = "requests completed rejected duration_s requests_per_s prompt_tokens_per_s output_tokens_per_s".split()
    write_csv(folder / "summary.csv", ["run", *axes, "seed", *counts, *columns, *REST], summary)
    write_csv(folder / "requests.csv", REQUESTS, requests)
    write_csv(folder / "timeline.csv", TIMELINE, timeline)
    (folder / "manifest.json").write_text(json.dumps({"name": folder.name}))
    return folder


def add_policy_times(folder, shares):
    """Gives runs the columns of a KV policy's time: `shares` of prefill and decode by run; others have empty fields."""
    with open(folder / "requests.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        scheduled, first, last = (int(row[f"{name}_ns"]) for name in ("scheduled", "first_token", "last_token"))
        prefill, decode = shares.get(row["run"], (None, None))
        row["prefill_policy_ns"] = "" if prefill is None else int(prefill * (first - scheduled))
        row["decode_policy_ns"] = "" if decode is None else int(decode * (last - first))
    write_csv(folder / "requests.csv", list(rows[0]), [list(row.values()) for row in rows])


BLOCK_CACHES = ("lru", "fifo", "lfu", "s3fifo", "arc", "gdsf", "belady")


def write_hit_ratios(folder, policies=BLOCK_CACHES, sizes=(100, 300, 1000, 3000, 10_000, 30_000, 100_000), limits=(50,)):
    """`limits`: of the trace's requests; with more of them a smaller share hits."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for limit, policy, size in itertools.product(limits, policies, sizes):
        speed = 1.5 if policy == "belady" else 1 - 0.06 * policies.index(policy)
        share = 0.62 * (1 - np.exp(-((size / 9000) ** 0.55) * speed)) * limits[0] / limit
        counts = [limit, 288_500, int(share * 288_500), share, share * 1.05, 7, size / 16]
        rows.append([f"{len(rows) + 1:04d}", limit, policy, size, 1, *counts])
    axes = ["run", "trace.limit_requests", "block_cache", "capacity_blocks", "seed"]
    write_csv(folder / "summary.csv", axes + "requests lookups hits hit_frac token_hit_frac evictions capacity_gib".split(), rows)
    return folder


GRADED = ("recipe budget_tokens task length num_answers exact_match_frac kl_to_full bits_per_byte resident_bytes_frac exact_match_lo exact_match_hi full_exact_match_frac "
          "attention_mass output_rel_err topk_recall replay_kl_nats far_mass_kept needle_mass_kept needle_found_frac family").split()


def write_predictions(folder):
    """Ten graded and replayed recipes and the full cache on two tasks; half of the recipes lose nothing in one, which has needles."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(11):
        recipe, family = ("full", "reference") if i == 0 else (f"recipe{i}", "attention")
        for task in ("niah", "freq"):
            right = 1.0 if i < 6 else 1.6 - 0.1 * i
            found = right if task == "niah" else ""
            mass = 1 - 0.05 * i
            rows.append([f"{i:04d}", 128, 1, recipe, 128, task, 1024, 10, right, 0.1 * i, 0.7, 0.2, right - 0.1, min(1, right + 0.1), 1.0, 1 - 0.01 * ((7 * i) % 11), 0.1, 0.9,
                         0.1, mass, mass, found, family])
    write_csv(folder / "summary.csv", ["run", "kv_policy.budget_tokens", "seed", *GRADED], rows)
    return folder


def write_validation(folder):
    rng = np.random.default_rng(7)
    rows = []
    for metric, statistic in itertools.product(("ttft", "tpot", "e2e", "ttft_first120"), STATISTICS[:5]):
        real = rng.uniform(50, 500)
        diff = rng.normal(0, 0.02)
        rows.append([metric, statistic, real, real * (1 + diff), real * (1 + diff - 0.01), real * (1 + diff + 0.012), diff])
    write_csv(folder / "validation.csv", "metric statistic real simulated simulated_lo simulated_hi diff_frac".split(), rows)
    seconds = np.arange(0, 160)
    real = 900 * np.exp(-(((seconds - 70) / 55) ** 4)) + rng.normal(0, 25, 160)
    rows = zip(seconds, real.clip(0), (real + rng.normal(0, 30, 160)).clip(0))
    write_csv(folder / "throughput.csv", "time_s real_tokens_per_s simulated_tokens_per_s".split(), rows)
    rows = [[b, 18 + 0.09 * b, (18 + 0.09 * b) * (1 + d), int(400 / (1 + b / 20)), d] for b in (1, 2, 4, *range(8, 136, 8)) for d in [rng.normal(0, 0.01)]]
    write_csv(folder / "validation_steps.csv", "padded_batch real_ms simulated_ms count diff_frac".split(), rows)
    return folder


REPLAY = ("recipe budget_tokens attention_mass output_rel_err topk_recall resident_bytes_frac kl_nats needle_kept kept_tokens attended_tokens host_bytes_frac "
          "disk_bytes_frac peak_prefill_frac fetched_bytes_per_step stored_bytes_per_step unit_hit_frac samples decode_steps family").split()
FIDELITY = "attention_mass output_rel_err topk_recall kl_nats needle_kept attended_tokens".split()


def replay_row(recipe, family, kept, attended, mass, error, resident, needle, host=0.0):
    return [recipe, min(kept, attended), mass, error, mass, resident, 0.1, needle, kept, attended, host, 0.0, 1.0, 0, 0, "", 2, 10, family]


def write_replay(folder, budgets=(128, 512), layers=3, kv_heads=2):
    """Two evicting recipes and random at the budgets, a format, a selector and one that offloads, over 1,000 tokens."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [("", replay_row("full", "reference", 1000, 1000, 1.0, 0.0, 1.0, 1.0))]
    for place, (recipe, family) in enumerate((("snapkv", "attention"), ("streaming", "position"), ("random", "reference"))):
        for b in budgets:
            rows.append((b, replay_row(recipe, family, b, b, 1 - (1 + place) * 20 / b, (1 + place) * 30 / b, b / 1000, min(1, b / 1000 / (1 + place)))))
    rows.append(("", replay_row("kivi2", "format", 1000, 1000, 1.0, 0.1, 0.2, 1.0)))
    for b in budgets:
        rows.append((b, replay_row("quest", "selection", 1000, b, 1 - 10 / b, 15 / b, 1.06, 0.9)))
        rows.append((b, replay_row("offload", "selection", 1000, b, 1 - 5 / b, 8 / b, 0.05, 0.9, host=0.95)))
    write_csv(folder / "summary.csv", ["run", "kv_policy.budget_tokens", "seed", *REPLAY], [[f"{i:04d}", row[0], 1, *row[1]] for i, row in enumerate(rows, start=1)])
    heads, steps = [], []
    for i, (_, row) in enumerate(rows, start=1):
        for sample in ("first", "second"):
            values = lambda k: [max(0.0, row[2] - 0.01 * k), *row[3:5], 0.1, row[7], row[9]]
            heads += [[f"{i:04d}", sample, layer, head, *values(layer + head)] for layer in range(layers) for head in range(kv_heads)]
            steps += [[f"{i:04d}", sample, step, *values(step)] for step in range(5)]
    write_csv(folder / "heads.csv", ["run", "sample", "layer", "kv_head", *FIDELITY], heads)
    write_csv(folder / "steps.csv", ["run", "sample", "step", *FIDELITY], steps)
    (folder / "manifest.json").write_text(json.dumps({"name": folder.name}))
    return folder
