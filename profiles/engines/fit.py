#!/usr/bin/env python3
"""Fits an engine's own device and host times to public measurements of engines.

    kvlab validate --points FILE.csv --out DIR      # with all times of profiles/engines/*.yaml at 0
    profiles/engines/fit.py FILE.csv DIR/points.csv

FILE.csv: measured points (docs/experiments.md). A point's mean time per token is the simulated one plus the times below, each as often
as a step has it. Half of the points (bit 1 of the id's CRC-32 is 0) are fitted, by the least mean |log(fitted / measured)|; the other
half is only judged. Times below 0 are not allowed. Only points within 35 % before count, since rows of an unknown load differ more.
"""
import sys
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[1]
TERMS = ["step", "sequence", "layer", "qk_norm", "experts", "host_step", "host_sequence"]
OUTLIER = 0.6  # |log(simulated / measured)| above which a point is not fitted


def numbers(version):
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in str(version).split(".")[:2])


def overlaps_from(engine):
    """The first version whose host works beside the device; those before it plan a step after the one before it, and its time adds up."""
    versions = yaml.safe_load((ROOT / "engines" / f"{engine}.yaml").read_text())["versions"]
    return min((numbers(v) for v, times in versions.items() if times["host"].get("overlaps", True)), default=(sys.maxsize,))


def model_of(name, names):
    """layers, 1 where queries and keys are normalized, and the layers with experts."""
    entry = names["models"][name]
    config = yaml.safe_load((ROOT / "models" / f"{entry if isinstance(entry, str) else next(iter(entry))}.yaml").read_text())
    config = config.get("text_config", config)
    layers = config["num_hidden_layers"]
    experts = any(key in config for key in ("num_experts", "n_routed_experts", "num_local_experts"))
    has_norm = config.get("model_type", "").startswith("qwen3") or bool(config.get("use_qk_norm"))
    return layers, int(has_norm), layers - config.get("first_k_dense_replace", 0) if experts else 0


def read(points_file, simulated_file):
    rows = pd.read_csv(points_file).merge(pd.read_csv(simulated_file), on="id")
    names = yaml.safe_load((ROOT / "points_names.yaml").read_text())
    shapes = np.array([model_of(name, names) for name in rows.model_path], float)
    stated = rows.silicon_data_source.str.extract(r"silicon_concurrency=(\d+)")[0].astype(float)
    ranks = rows.attention_dp_size.fillna(1).clip(lower=1)
    per_rank = stated.fillna(rows.batch_size) / ranks
    first = {engine: overlaps_from(engine) for engine in rows.backend.unique()}
    is_sync = [float(numbers(v) < first[b]) if isinstance(v, str) and v[0].isdigit() else 0.0
               for b, v in zip(rows.backend, rows.backend_version)]
    rows["features"] = list(np.column_stack([np.ones(len(rows)), per_rank, shapes[:, 0], shapes[:, 0] * shapes[:, 1], shapes[:, 2],
                                             is_sync, is_sync * per_rank]))
    rows["is_fitted"] = [zlib.crc32(i.encode()) >> 1 & 1 == 0 for i in rows.id]
    return rows


def fault(rows, times):
    simulated = rows.simulated_tpot_ms.to_numpy() + np.stack(rows.features) @ times
    return float(np.abs(np.log(simulated / rows.real_tpot_ms.to_numpy())).mean())


def fit(rows):
    """Coordinate descent: one time after the other, with steps that halve."""
    near = rows[np.abs(np.log(rows.simulated_tpot_ms / rows.real_tpot_ms)) < OUTLIER]
    scale = np.array([1.0, 0.02, 0.01, 0.02, 0.02, 1.0, 0.02])
    used = np.stack(near.features).any(axis=0)
    times, least = np.zeros(len(TERMS)), fault(near, np.zeros(len(TERMS)))
    step = scale.copy()
    while step[0] > 0.01:
        improved = False
        for i in np.flatnonzero(used):
            for sign in (1, -1):
                tried = times.copy()
                tried[i] = max(0, tried[i] + sign * step[i])
                if (now := fault(near, tried)) < least - 1e-9:
                    times, least, improved = tried, now, True
        if not improved:
            step /= 2
    return times, len(near)


def main():
    rows = read(sys.argv[1], sys.argv[2])
    for engine, group in rows.groupby("backend"):
        train, other = group[group.is_fitted], group[~group.is_fitted]
        times, count = fit(train)
        print(f"{engine}: {count} of {len(train)} points fitted, {len(other)} judged; us: "
              + ", ".join(f"{term} {1000 * t:.0f}" if term in ("step", "host_step") else f"{term} {1000 * t:.1f}" for term, t in zip(TERMS, times)))
        for name, part in (("fitted", train), ("judged", other)):
            before = part.simulated_tpot_ms / part.real_tpot_ms - 1
            after = (part.simulated_tpot_ms + np.stack(part.features) @ times) / part.real_tpot_ms - 1
            print(f"  {name}: median |difference| {100 * before.abs().median():.1f} % -> {100 * after.abs().median():.1f} %")


if __name__ == "__main__":
    main()
