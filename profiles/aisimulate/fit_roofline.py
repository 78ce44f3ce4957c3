#!/usr/bin/env python3
"""Fits the roofline's floors and efficiencies of one card to converted tables of the package aisimulate.

    fit_roofline.py FOLDER HARDWARE.yaml

FOLDER: as `kvlab profile convert --format aisimulate` writes it. A product takes floor + max(FLOPs / (peak * flops_frac),
bytes / (bandwidth * bandwidth_frac)); decode attention takes floor + bytes / (bandwidth * bandwidth_frac); the experts of a layer
as a product, with the weights of the experts that are expected to have a token. The values printed
have the least mean |log(fitted / measured)| over a grid. The keys are those of a hardware file (profiles/README.md).
"""
import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

EXPERT_FLOORS_US, EXPERT_FRACTIONS = range(10, 90, 5), np.arange(0.05, 0.81, 0.05)
# Bytes of a weight, and the card's key of the rate that products with it reach.
EXPERT_TYPES = {"bfloat16": (2, "bf16_flops"), "fp8_block": (1, "fp8_flops"), "int4_wo": (0.5, "bf16_flops"),
                "w4a16_mxfp4": (0.53125, "bf16_flops"), "nvfp4": (0.5625, "fp4_flops")}
UNPACKED = ("int4_wo", "w4a16_mxfp4")  # the kernel brings these weights to 16 bits
FLOORS_US = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15]
FRACTIONS = np.arange(0.30, 0.96, 0.05)


def error(rows, fitted_us):
    return float(np.abs(np.log(fitted_us / (rows.time_ns.to_numpy() / 1e3))).mean())


def best_fit(rows, time):
    """Mean error, floor in us and fraction, where time(floor, fraction) is nearest to the measured times."""
    return min((error(rows, time(floor, frac)), floor, frac) for floor, frac in itertools.product(FLOORS_US, FRACTIONS))


def fit_products(table, value_bytes, peak, bandwidth):
    """bandwidth: bytes per second that products reach. Weights of 2 to 320 million values, up to 8,192 rows."""
    rows = table[(table.m <= 8192) & (table.n * table.k).between(2e6, 3.2e8)]
    m, n, k = (rows[c].to_numpy(float) for c in "mnk")
    flops, bytes_ = 2 * m * n * k, (m * k + n * k) * value_bytes + 2 * m * n
    return best_fit(rows, lambda floor, frac: floor + np.maximum(flops / peak / frac, bytes_ / bandwidth) * 1e6), len(rows)


def fit_decode(table, bandwidth, used_frac):
    """128 channels per head, 16-bit KV, no window. Returns also the error with the card's own share of the bandwidth."""
    rows = table[(table.head_dim == 128) & (table.rows <= 512) & (table.window == 0)]
    count, context, q_heads, kv_heads = (rows[c].to_numpy(float) for c in ["rows", "context", "q_heads", "kv_heads"])
    bytes_ = count * (context * kv_heads + q_heads) * 128 * 4
    time = lambda floor, frac: floor + bytes_ / bandwidth / frac * 1e6
    best = best_fit(rows, time)
    return best, error(rows, time(best[1], used_frac)), len(rows)


def expert_work(folder, card, unpacked):
    """The measured rows of the types, with seconds of FLOPs at the peak rate and of bytes at the peak bandwidth."""
    for dtype, (value_bytes, rate) in EXPERT_TYPES.items():
        file = folder / f"moe_{dtype}.csv"
        if not file.exists() or rate not in card or unpacked != (dtype in UNPACKED):
            continue
        rows = pd.read_csv(file)
        rows = rows[(rows.tokens <= 8192) & (rows.ep == 1) & (rows.experts >= 64) & (rows.experts_per_token >= 4)]
        active = rows.experts * (1 - (1 - rows.experts_per_token / rows.experts) ** rows.tokens)
        weight = 3.0 * rows.hidden * rows.intermediate / rows.tp
        yield rows.assign(flops_s=2 * rows.tokens * rows.experts_per_token * weight / float(card[rate]),
                          bytes_s=active * weight * value_bytes / float(card["memory_bandwidth_bytes_per_s"]), weight=1 / len(rows))


def fit_experts(folder, card, used_frac, unpacked):
    """Each type counts the same, whatever its number of rows. None: there are no tables of these types."""
    tables = list(expert_work(folder, card, unpacked))
    if not tables:
        return None
    rows = pd.concat(tables)
    measured, weight = rows.time_ns.to_numpy() / 1e3, rows.weight.to_numpy() / rows.weight.sum()

    def fault(floor, frac):
        fitted = floor + np.maximum(rows.flops_s.to_numpy() / frac, rows.bytes_s.to_numpy() / used_frac) * 1e6
        return float((np.abs(np.log(fitted / measured)) * weight).sum())

    return min((fault(floor, frac), floor, frac) for floor, frac in itertools.product(EXPERT_FLOORS_US, EXPERT_FRACTIONS)), len(rows)


def main():
    folder, card = Path(sys.argv[1]), yaml.safe_load(open(sys.argv[2]))
    bandwidth = float(card["memory_bandwidth_bytes_per_s"])
    used_frac = float(card.get("bandwidth_frac", 0.8))
    (fault, floor, frac), used, rows = fit_decode(pd.read_csv(folder / "attention_decode_bfloat16.csv"), bandwidth, used_frac)
    print(f"attention_floor_ns: {1000 * floor:.0f}  # {rows} rows, mean error {100 * used:.0f} %; {100 * fault:.0f} % with bandwidth_frac {frac:.2f}")
    for dtype, value_bytes, rate, key in [("bfloat16", 2, "bf16_flops", ""), ("fp8", 1, "fp8_flops", "fp8_"),
                                           ("nvfp4", 0.5625, "fp4_flops", "fp4_")]:
        file = folder / f"gemm_{dtype}.csv"
        if not file.exists() or rate not in card:
            continue
        (fault, floor, frac), rows = fit_products(pd.read_csv(file), value_bytes, float(card[rate]), bandwidth * used_frac)
        print(f"{key}linear_floor_ns: {1000 * floor:.0f}\n{key}flops_frac: {frac:.2f}  # {rows} products, mean error {100 * fault:.0f} %")
    for unpacked, key in [(False, ""), (True, "unpacked_")]:
        found = fit_experts(folder, card, used_frac, unpacked)
        if found:
            (fault, floor, frac), rows = found
            print(f"{key}experts_floor_ns: {1000 * floor:.0f}\n{key}experts_flops_frac: {frac:.2f}  # {rows} shapes, mean error {100 * fault:.0f} %")


if __name__ == "__main__":
    main()
