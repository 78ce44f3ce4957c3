#!/usr/bin/env python3
"""Fits the roofline's floors and efficiencies of one card to measured tables of the package aisimulate.

    fit_roofline.py FOLDER SYSTEM BACKEND VERSION HARDWARE.yaml

FOLDER holds SYSTEM/{gemm,attention}/BACKEND/VERSION/*.parquet. A product takes floor + max(FLOPs / (peak * flops_frac),
bytes / (bandwidth * bandwidth_frac)); decode attention takes floor + bytes / (bandwidth * bandwidth_frac). The values printed
have the least mean |log(fitted / measured)| over a grid. The keys are those of a hardware file (profiles/README.md).
"""
import itertools
import pathlib
import sys

import numpy as np
import pandas as pd
import yaml

FLOORS_US = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15]
FRACTIONS = np.arange(0.30, 0.96, 0.05)


def error(fitted, measured):
    return float(np.abs(np.log(fitted / measured)).mean())


def fit_products(table, dtype, peak, bandwidth, fraction_of_bandwidth):
    """Floor in us and share of the peak, for weights of 2 to 320 million values and up to 8,192 rows."""
    rows = table[(table.gemm_dtype == dtype) & (table.m <= 8192) & (table.n * table.k).between(2e6, 3.2e8)]
    if rows.empty or not peak:
        return None
    rows = rows.groupby(["m", "n", "k"]).latency.min().reset_index()  # the fastest kernel of those that were measured
    m, n, k = (rows[c].to_numpy(float) for c in "mnk")
    value_bytes = 2 if dtype == "bfloat16" else 1
    flops, bytes_ = 2 * m * n * k, (m * k + n * k) * value_bytes + 2 * m * n
    measured = rows.latency.to_numpy() * 1e3

    def time(floor, frac):
        return floor + np.maximum(flops / peak / frac, bytes_ / bandwidth / fraction_of_bandwidth) * 1e6

    best = min((error(time(*p), measured), *p) for p in itertools.product(FLOORS_US, FRACTIONS))
    return best, len(rows)


def fit_decode(table, bandwidth):
    """Floor in us and share of the bandwidth of decode attention with 128 channels per head, 16-bit KV, no window."""
    rows = table[(table.kv_cache_dtype == "bfloat16") & (table.head_dim == 128) & (table.batch_size <= 512)]
    if "window_size" in rows:
        rows = rows[rows.window_size == 0]
    length, heads = (rows.step + rows.isl).to_numpy(float), rows.num_heads.to_numpy(float)
    kv_heads = np.where(rows.num_key_value_heads == 0, heads, rows.num_key_value_heads)
    batch, measured = rows.batch_size.to_numpy(float), rows.latency.to_numpy() * 1e3
    bytes_ = batch * (length * kv_heads * 128 * 4 + heads * 128 * 4)
    best = min((error(f + bytes_ / bandwidth / e * 1e6, measured), f, e) for f, e in itertools.product(FLOORS_US, FRACTIONS))
    return best, len(rows)


def main():
    folder, system, backend, version, hardware = sys.argv[1:]
    card = yaml.safe_load(open(hardware))
    bandwidth = float(card["memory_bandwidth_bytes_per_s"])
    place = lambda family: pathlib.Path(folder) / system / family / backend / version
    print(f"# {system}, {backend} {version}: fitted to tables of aisimulate by profiles/aisimulate/fit_roofline.py")
    (fault, floor, frac), rows = fit_decode(pd.read_parquet(place("attention") / "generation_attention_perf.parquet"), bandwidth)
    print(f"attention_floor_ns: {1000 * floor:.0f}  # bandwidth_frac {frac:.2f}; {rows} rows, mean error {100 * fault:.0f} %")
    table = pd.read_parquet(place("gemm") / "gemm_perf.parquet")
    for dtype, peak, key in [("bfloat16", "bf16_flops", ""), ("fp8", "fp8_flops", "fp8_")]:
        found = fit_products(table, dtype, float(card.get(peak, 0)), bandwidth, float(card.get("bandwidth_frac", 0.8)))
        if found:
            (fault, floor, frac), rows = found
            print(f"{key}linear_floor_ns: {1000 * floor:.0f}\n{key}flops_frac: {frac:.2f}  # {rows} products, mean error {100 * fault:.0f} %")


if __name__ == "__main__":
    main()
