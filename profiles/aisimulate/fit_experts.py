#!/usr/bin/env python3
"""Fits the roofline's figures of a card's experts to a table of experts of the package aisimulate.

    pip install pandas pyarrow scipy pyyaml
    fit_experts.py moe_perf.parquet HARDWARE.yaml

The experts of a layer take floor + weights / (bandwidth * bandwidth_frac) + FLOPs / (peak * flops_frac) + passes * pairs * hidden * 2 bytes /
(bandwidth * the card's bandwidth_frac), with pairs of a token and an expert, and the weights of the experts that are expected to have a
token. For each kind it prints the figures, the mean |log(fitted / measured)|, and the same where each shape is fitted without itself.
"""
import sys

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares

ROUTING = "power_law_1.2"
# Kind, the package's type, bytes of a weight, the card's key of the rate.
KINDS = [("experts", "bfloat16", 2, "bf16_flops"), ("fp8_experts", "fp8_block", 1, "fp8_flops"), ("fp4_experts", "nvfp4", 0.5625, "fp4_flops"),
         ("unpacked_experts", "int4_wo", 0.5, "bf16_flops"), ("mxfp4_experts", "w4a16_mxfp4", 0.53125, "bf16_flops"),
         ("mxfp4_experts", "w4a8_mxfp4_mxfp8", 0.53125, "fp8_flops")]
# floor in us, and the inverses of both fractions, and passes: first guess, least, most.
GUESS, LEAST, MOST = [30, 1.2, 2, 5], [1, 1.0, 1.05, 0], [200, 20, 50, 40]


def rows_of(table, dtype):
    """Uncut by expert, 64 or more experts, 4 or more of them for a token, up to 16,384 tokens; the fastest of several kernels."""
    keys = ["hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "num_tokens"]
    rows = table[(table.moe_dtype == dtype) & (table.distribution == ROUTING) & (table.moe_ep_size == 1) & (table.num_experts >= 64)
                 & (table.topk >= 4) & (table.num_tokens <= 16384)]
    rows = rows[~((dtype == "w4a16_mxfp4") & ~rows.kernel_source.str.contains("gptoss"))]  # of other models: another kernel
    return rows.groupby([*keys, "kernel_source"], as_index=False).latency.mean().groupby(keys, as_index=False).latency.min()


def terms(rows, weight_bytes, peak, bandwidth, used_frac):
    """Seconds of each term at the full rates; the floor in microseconds."""
    pairs = rows.num_tokens * rows.topk
    weights = 3.0 * rows.hidden_size * rows.inter_size / rows.moe_tp_size
    active = rows.num_experts * (1 - (1 - rows.topk / rows.num_experts) ** rows.num_tokens)
    return np.stack([np.full(len(rows), 1e-6), active * weights * weight_bytes / bandwidth, 2 * pairs * weights / peak,
                     2 * pairs * rows.hidden_size / (bandwidth * used_frac)], axis=1)


def fit(parts, seconds):
    return least_squares(lambda x: np.log(parts @ x / seconds), GUESS, bounds=(LEAST, MOST), loss="soft_l1", f_scale=0.1).x


def mean_error(parts, seconds, figures):
    return float(np.abs(np.log(parts @ figures / seconds)).mean())


def held_out(parts, seconds, shapes):
    """The mean over shapes, each fitted without its rows; none with one shape."""
    names = np.unique(shapes)
    if len(names) < 2:
        return None
    return float(np.mean([mean_error(parts[shapes == n], seconds[shapes == n], fit(parts[shapes != n], seconds[shapes != n])) for n in names]))


def main():
    table, card = pd.read_parquet(sys.argv[1]), yaml.safe_load(open(sys.argv[2]))
    for kind, dtype, weight_bytes, rate in KINDS:
        rows = rows_of(table, dtype)
        if kind == "mxfp4_experts" and "fp4_flops" in card:
            rate = "fp8_flops"  # the simulator's rate of MXFP4 on such cards, whatever the kernel multiplies
        if rate not in card or rows.empty:
            continue
        parts = terms(rows, weight_bytes, float(card[rate]), float(card["memory_bandwidth_bytes_per_s"]), float(card.get("bandwidth_frac", 0.8)))
        seconds = rows.latency.to_numpy() / 1e3
        shapes = (rows.hidden_size.astype(str) + "-" + rows.inter_size.astype(str) + "-" + rows.num_experts.astype(str)).to_numpy()
        figures, error = fit(parts, seconds), held_out(parts, seconds, shapes)
        floor, bandwidth_frac, flops_frac, passes = figures[0] * 1000, 1 / figures[1], 1 / figures[2], figures[3]
        beyond = "one shape, none held out" if error is None else f"{100 * error:.0f} % held out"
        print(f"{kind}_floor_ns: {floor:.0f}\n{kind}_flops_frac: {flops_frac:.2f}\n{kind}_bandwidth_frac: {bandwidth_frac:.2f}\n"
              f"{kind}_passes: {passes:.1f}   # {dtype}, {len(rows)} rows: mean error {100 * mean_error(parts, seconds, figures):.0f} %, {beyond}")


if __name__ == "__main__":
    main()
