"""Replays the first requests of a Mooncake trace with NVIDIA's AISimulate, prints its latencies, and compares those of a `kvlab run`.

usage: tests/parity/aisimulate_mooncake.py --trace FILE.jsonl --out DIR [--requests 5000] [--replicas 8] [--speedup 1]
           [--budget-tokens 8192] [--max-sequences 256] [--block-tokens 16] [--blocks N] [--no-prefix-caching]
           [--model NAME] [--system NAME] [--backend vllm] [--version 0.14.0] [--kvlab REQUESTS_CSV]

Writes DIR/trace.jsonl (the requests, for `kvlab run` too), DIR/predict.yaml and DIR/predict/ (what `aisimulate predict` writes). Percentiles
interpolate linearly. TPOT is that of requests of two output tokens or more. Without --blocks the package derives the KV blocks of a replica
from its memory; the number is printed. Its engine places requests in turn (round robin); it has no other placement of its own.
Needs `pip install --pre aisimulate==0.13.0.dev202610270000000085`; without the package it says so and exits 0.
"""

import argparse
import csv
import importlib.util
import itertools
import json
import pathlib
import subprocess
import sys

PERCENTILES = (50, 90, 99)


def config_of(options, trace):
    """The configuration of `aisimulate predict`; YAML reads JSON."""
    cache = {"block_size": options.block_tokens, "prefix_caching": not options.no_prefix_caching}
    if options.blocks:
        cache["capacity"] = {"type": "fixed", "blocks": options.blocks}
    worker = {
        "parallelism": {"replicas": options.replicas, "tensor": 1},
        "scheduler": {"max_batched_tokens": options.budget_tokens, "max_sequences": options.max_sequences},
        "kv_cache": cache,
    }
    return {
        "traffic": {"source": {"type": "trace", "paths": [str(trace)], "format": "mooncake", "block_size": 512},
                    "load": {"type": "trace_timestamps", "speedup": options.speedup}},
        "engine": {"mode": "aggregated", "model": options.model, "hardware": options.system, "backend": options.backend,
                   "backend_version": options.version, "enable_chunked_prefill": True, "workers": {"aggregated": worker}},
    }


def predict(options, folder):
    """Runs the package in a process of its own. Returns prediction.json."""
    trace, config = folder / "trace.jsonl", folder / "predict.yaml"
    with open(options.trace, encoding="utf-8") as source, open(trace, "w", encoding="utf-8") as kept:
        kept.writelines(itertools.islice(source, options.requests))
    config.write_text(json.dumps(config_of(options, trace.resolve()), indent=1) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "aisimulate", "predict", "-c", str(config), "--output-dir", str(folder / "predict"), "--overwrite",
               "--capture-per-request", "--format", "json", "--detail", "memory"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"aisimulate_mooncake: `aisimulate predict` failed:\n{run.stderr[-2000:]}")
    return json.loads((folder / "predict" / "prediction.json").read_text(encoding="utf-8"))


def latencies_of_package(requests):
    """{name: [ms]} of the requests that complete, times from arrival."""
    done = [r for r in requests if r["terminal_status"] == "completed"]
    return {
        "TTFT": [r["first_token_ms"] - r["arrival_time_ms"] for r in done],
        "TPOT": [(r["last_token_ms"] - r["first_token_ms"]) / (r["output_length"] - 1) for r in done if r["output_length"] > 1],
        "E2E": [r["last_token_ms"] - r["arrival_time_ms"] for r in done],
    }


def latencies_of_kvlab(path):
    with open(path, newline="", encoding="utf-8") as file:
        done = [r for r in csv.DictReader(file) if r["state"] == "completed"]
    if len({r["run"] for r in done}) != 1:
        sys.exit(f"aisimulate_mooncake: {path} has requests of several runs; give runs/ID/requests.csv of one")
    at = [{name: int(r[f"{name}_ns"]) / 1e6 for name in ("arrival", "first_token", "last_token")} | {"out": int(r["output_tokens"])} for r in done]
    return {
        "TTFT": [r["first_token"] - r["arrival"] for r in at],
        "TPOT": [(r["last_token"] - r["first_token"]) / (r["out"] - 1) for r in at if r["out"] > 1],
        "E2E": [r["last_token"] - r["arrival"] for r in at],
    }


def quantile(ordered, percent):
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def statistics_of(values):
    ordered = sorted(values)
    return [sum(ordered) / len(ordered), *(quantile(ordered, p) for p in PERCENTILES)]


def print_table(package, kvlab):
    head = ["mean", *(f"p{p}" for p in PERCENTILES)]
    print("| ms | " + " | ".join(head) + " |\n|---|" + "---|" * len(head))
    for name, values in package.items():
        theirs = statistics_of(values)
        print(f"| {name}, aisimulate, {len(values)} requests | " + " | ".join(f"{v:,.1f}" for v in theirs) + " |")
        if kvlab:
            ours = statistics_of(kvlab[name])
            print(f"| {name}, kvlab, {len(kvlab[name])} requests | "
                  + " | ".join(f"{v:,.1f} ({100 * (v / t - 1):+.1f} %)" for v, t in zip(ours, theirs)) + " |")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--kvlab")
    parser.add_argument("--model", default="meta-llama/Meta-Llama-3.1-8B")
    for name, default in (("system", "a100_sxm"), ("backend", "vllm"), ("version", "0.14.0")):
        parser.add_argument(f"--{name}", default=default)
    for name, default in (("requests", 5000), ("replicas", 8), ("budget-tokens", 8192), ("max-sequences", 256), ("block-tokens", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--speedup", type=float, default=1.0)
    parser.add_argument("--no-prefix-caching", action="store_true")
    return parser.parse_args()


def main():
    options = parse_options()
    if importlib.util.find_spec("aisimulate") is None:
        print("aisimulate_mooncake: skipped: no module aisimulate; pip install --pre aisimulate==0.13.0.dev202610270000000085")
        return
    folder = pathlib.Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    report = predict(options, folder)
    memory = report.get("memory_diagnostics", {}).get("aggregated", {})
    print(f"{report['completed_requests']} of {report['num_requests']} requests completed, KV blocks per replica "
          f"{options.blocks or memory.get('estimated_num_gpu_blocks', 'not stated')} of {options.block_tokens} tokens, "
          f"prefix hits {100 * report['prefix_cache_reused_ratio']:.2f} % of the prompt tokens, "
          f"preempted {sum(r['readmission_count'] > 0 for r in report['per_request'])} requests")
    print_table(latencies_of_package(report["per_request"]), latencies_of_kvlab(options.kvlab) if options.kvlab else None)


if __name__ == "__main__":
    main()
