#!/usr/bin/env python3
"""Makes a card's table of collectives from the tables that AISimulate (NVIDIA aiconfigurator, Apache-2.0) ships for a system.

    pip install pyarrow
    profiles/collectives/from_aisimulate.py FOLDER/h100_sxm "H100 SXM 80GB" > profiles/collectives/h100.yaml
    profiles/collectives/from_aisimulate.py FOLDER/h100_sxm "H100 SXM 80GB" trtllm sglang   # tables of these libraries alone, to append

FOLDER/SYSTEM/comm holds LIBRARY/VERSION/*.parquet. Sizes there count elements; milliseconds become nanoseconds. Takes all versions of
vLLM, the newest of NCCL, and the oldest and the newest of other engines.
Points that the neighbours reproduce within TOLERANCE, on straight lines in the logarithms, are left out. A point that is slower than a
longer message by more than FALL is a disturbed measurement and is left out too; the count of these is in the file.
"""
import math
import pathlib
import re
import sys

import pyarrow.parquet as parquet

BYTES_PER_ELEMENT = {"half": 2, "bfloat16": 2}
OPS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
TOLERANCE = 0.005
FALL = 0.1
LARGEST = 1 << 28  # bytes; what is longer goes at the last point's rate


PATTERN = {"nccl": "nccl_perf.parquet", **dict.fromkeys(("vllm", "trtllm", "sglang"), "custom_allreduce_perf.parquet")}
LIBRARIES = ("vllm", "trtllm", "sglang", "nccl")


def version_key(version):
    """1.3.0rc10 comes before 1.3.0rc20."""
    return [int(number) for number in re.findall(r"\d+", version)]


def rows_of(path):
    for row in parquet.read_table(path).to_pylist():
        dtype = row.get("allreduce_dtype") or row.get("nccl_dtype")
        if dtype not in BYTES_PER_ELEMENT or (row.get("backend") or "graph").endswith("eager"):
            continue  # steps run as CUDA graphs; in the eager rows a launch from Python hides the kernel
        size = row["message_size"] * BYTES_PER_ELEMENT[dtype]
        if size <= LARGEST:
            yield OPS[row["op_name"]], row["num_gpus"], size, row["latency"] * 1e6


def without_disturbed(points):
    """From the longest message down, no point may be slower than what follows by more than FALL."""
    kept, limit = [], math.inf
    for size, ns in reversed(points):
        if ns > limit * (1 + FALL):
            continue
        kept.append((size, ns))
        limit = min(limit, ns)
    return kept[::-1]


def at(a, b, size):
    share = math.log(size / a[0]) / math.log(b[0] / a[0])
    return a[1] * (b[1] / a[1]) ** share


def thinned(points):
    if len(points) < 3:
        return points
    first, last = points[0], points[-1]
    error, worst = max((abs(at(first, last, size) / ns - 1), i) for i, (size, ns) in enumerate(points) if 0 < i < len(points) - 1)
    if error <= TOLERANCE:
        return [first, last]
    return thinned(points[: worst + 1])[:-1] + thinned(points[worst:])


def versions_of(folder, library):
    """Newest first."""
    home = folder / "comm" / library
    versions = sorted((f.name for f in home.iterdir()), key=version_key, reverse=True) if home.is_dir() else []
    versions = [v for v in versions if any(is_of_version(path, v, library) for path in (home / v).glob(PATTERN[library]))]
    if library == "vllm":
        return versions
    return versions[:1] if library == "nccl" else versions[:1] + versions[1:][-1:]


def is_of_version(path, version, library):
    """False: another version's table under this name, or one of NCCL with few operations."""
    if library == "nccl":
        return "all_gather" in parquet.read_table(path, columns=["op_name"]).column(0).to_pylist()
    return parquet.read_table(path, columns=["version"]).column(0)[0].as_py() == version


def tables_of(folder, libraries):
    """(op, library, version, ranks) -> points."""
    tables = {}
    for library in libraries:
        for version in versions_of(folder, library):
            for path in sorted((folder / "comm" / library / version).glob(PATTERN[library])):
                for op, ranks, size, ns in rows_of(path):
                    tables.setdefault((op, library, version, ranks), {}).setdefault(size, []).append(ns)
    return {key: sorted((size, sum(ns) / len(ns)) for size, ns in points.items()) for key, points in tables.items()}


def device_of(folder):
    path = sorted((folder / "comm").glob("*/*/*.parquet"))[-1]
    return parquet.read_table(path, columns=["device"]).column(0)[0].as_py()


def main():
    folder, card, libraries = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    lines, disturbed = [], 0
    for (op, library, version, ranks), points in tables_of(folder, libraries or LIBRARIES).items():
        good = without_disturbed(points)
        disturbed += len(points) - len(good)
        text = ", ".join(f"[{size}, {ns:.0f}]" for size, ns in thinned(good))
        lines.append(f'  - {{op: {op}, library: {library}, version: "{version}", ranks: {ranks}, points: [{text}]}}')
    if libraries:
        print("\n".join(lines))
        return
    print(f"# Made by profiles/collectives/from_aisimulate.py; {disturbed} disturbed points left out. Points are [bytes, nanoseconds].")
    print(f'hardware: "{card}"')
    print(f'source: "AISimulate (NVIDIA aiconfigurator), systems/data/{folder.name}/comm, measured on {device_of(folder)}"')
    print("licence: Apache-2.0")
    print("tables:")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
