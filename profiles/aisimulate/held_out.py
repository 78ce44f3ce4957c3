"""Prints how far the simulator's interpolation is from rows that it is not shown: docs/cost-model.md has the result.

usage: python3 profiles/aisimulate/held_out.py FOLDER SYSTEM BACKEND VERSION
Every row between two others on an axis is predicted from these two, as the simulator does it; steps are then twice as wide as in use.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

import convert
import tables

LEAST_WIDTH = 512  # of products: narrower ones occur in no model


def report(what, errors):
    size = np.abs(errors)
    print(f"| {what} | {len(errors):,} | {100 * np.median(errors):+.1f} % | {100 * np.median(size):.1f} % | {100 * np.quantile(size, 0.9):.1f} % |")


def between(rows, axis, others):
    """Relative errors of rows predicted from their neighbours on one axis, the others equal."""
    rows = rows.sort_values([*others, axis])
    near = [rows.shift(1), rows.shift(-1)]
    inside = np.logical_and.reduce([(part[others] == rows[others]).all(axis=1) for part in near])
    low, high = near
    share = (rows[axis] - low[axis]) / (high[axis] - low[axis])
    return ((low.time_ns + (high.time_ns - low.time_ns) * share) / rows.time_ns - 1)[inside].to_numpy()


def beyond_last(rows, axis, others):
    """The largest value in proportion to the one before it."""
    rows = rows.sort_values([*others, axis])
    low = rows.shift(1)
    last = (low[others] == rows[others]).all(axis=1) & ~(rows.shift(-1)[others] == rows[others]).all(axis=1)
    return (low.time_ns * rows[axis] / low[axis] / rows.time_ns - 1)[last].to_numpy()


def half_the_heads(rows):
    """Twice the decode rows with half the heads."""
    halves = rows.assign(kv_heads=rows.kv_heads * 2, q_heads=rows.q_heads * 2, rows=rows.rows / 2)
    halves = halves[halves.rows % 1 == 0].astype({"rows": int})
    both = rows.merge(halves, on=["window", "head_dim", "kv_heads", "q_heads", "rows", "context"])
    return (both.time_ns_y / both.time_ns_x - 1).to_numpy()


def shared_calls(frame, prefill):
    """Calls of 2 prompts up to the largest batch but that one, which the table is made of."""
    frame = frame if "window_size" in frame else frame.assign(window_size=0)
    frame = frame[(frame.kv_cache_dtype == "bfloat16") & (frame.attn_dtype == "bfloat16")]
    frame = frame.rename(columns={**tables.SHAPE, "isl": "tokens"})
    keys = [*tables.SHAPE.values(), "tokens"]
    frame = frame[(frame.batch_size > 1) & (frame.batch_size < frame.groupby(keys).batch_size.transform("max"))]
    both = frame.merge(prefill, on=keys)
    together = both.time_ns + (both.batch_size - 1) * both.more_ns
    measured = both.latency * tables.NS_PER_MS
    return (together / measured - 1).to_numpy(), (both.batch_size * both.time_ns / measured - 1).to_numpy()


def main(folder, system, backend, version):
    notes, arguments = [], SimpleNamespace(routing="balanced")
    card = convert.card_of(system, folder, convert.HARDWARE.get(system, system))
    place = folder / system

    def rows(family, name, make, table):
        frame = convert.read(place / family / backend / version / f"{name}.parquet")
        return frame, make(frame, card, arguments, notes)[table]

    print("| table | rows | bias | median | 9 of 10 below |\n|---|---|---|---|---|")
    _, gemm = rows("gemm", "gemm_perf", tables.gemm, "gemm_bfloat16")
    gemm = gemm[(gemm.n >= LEAST_WIDTH) & (gemm.k >= LEAST_WIDTH)]
    for axis in ("n", "k", "m"):
        report(f"matrix products between {axis}", between(gemm, axis, [a for a in ("n", "k", "m") if a != axis]))
    report("matrix products beyond the largest n", beyond_last(gemm, "n", ["k", "m"]))
    heads = ["window", "head_dim", "kv_heads"]
    _, decode = rows("attention", "generation_attention_perf", tables.decode, "attention_decode_bfloat16")
    for axis in ("q_heads", "rows", "context"):
        report(f"decode attention between {axis}", between(decode, axis, [*heads, *[a for a in ("q_heads", "rows", "context") if a != axis]]))
    report("decode attention of twice the KV heads", half_the_heads(decode))
    frame, prefill = rows("attention", "context_attention_perf", tables.prefill, "attention_prefill_bfloat16")
    for axis in ("q_heads", "tokens"):
        report(f"prompts between {axis}", between(prefill, axis, [*heads, *[a for a in ("q_heads", "tokens") if a != axis]]))
    together, alone = shared_calls(frame, prefill)
    report("several prompts in a call", together)
    report("the same, each alone", alone)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])
