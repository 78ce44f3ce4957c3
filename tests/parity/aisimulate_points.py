"""Predicts measured points of engines with NVIDIA's AISimulate, and compares its errors with the simulator's.

usage: tests/parity/aisimulate_points.py --points FILE --out FILE [--groups-of POINTS_CSV] [--kv row | checkpoint]

Each row of FILE with mode agg (columns of AISimulate's silicon_sample.csv) is one call of cli_estimate, the Python form of `aiconfigurator cli
estimate --estimate-mode agg`; batch_size counts the requests of one data-parallel rank, as there. The output has one line per row:
id,group,real_tpot_ms,predicted_tpot_ms,note. The note says which tables were used, or why there is no prediction.

Attempts at a row, until one gives a time: measured tables alone (SILICON) with the row's formats; the same with fp8 read as fp8_block, the
format of the checkpoints of DeepSeek, MiniMax and others; both again without a type of keys and values; tables filled by the package's own
estimates (HYBRID) with the row's formats. gpt-oss keeps the mxfp4 of its checkpoint, with TensorRT-LLM on Blackwell first with activations in
mxfp8, as that engine runs it. --kv row (default): keys and values in fp8 where weights are fp8 or fp4, as the simulator assumes;
--kv checkpoint: as the package derives it.

--groups-of: points.csv of `kvlab validate --points`. Its groups are used, and the median |error| of both is printed for each group of at least
ten rows that both predict. Needs `pip install --pre aisimulate==0.13.0.dev202610270000000085`; without the package it says so and exits 0.
"""

import argparse
import collections
import contextlib
import csv
import io
import logging
import os
import re
import statistics
import sys

FEWEST_ROWS = 10
# Names whose config.json the package does not ship, and the shipped one of the same shape.
ALIASES = {
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
OWN_FORMAT = ("openai/gpt-oss-20b", "openai/gpt-oss-120b")  # weights are stored as the checkpoint says
BLACKWELL = ("b200_sxm", "b300_sxm", "gb200", "gb300")
KV_TYPES = {"fp8": "fp8", "fp4": "fp8", "bf16": "bfloat16"}
WIDTHS = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")


def load_package():
    """The package's estimator and its list of versions, or None with a message where it is not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.disable(logging.CRITICAL)
    try:
        from aisimulate.legacy_cli.api import cli_estimate
        from aisimulate_core.sdk.perf_database import get_version_slots
    except ImportError as error:
        print(f"aisimulate_points: skipped: {error}; pip install --pre aisimulate==0.13.0.dev202610270000000085")
        return None
    return cli_estimate, get_version_slots


def version_key(version):
    """The numbers of a version in order, None if it does not begin with one: nightly builds and the like."""
    return [int(n) for n in re.findall(r"\d+", version)] if re.match(r"\d", version) else None


def nearest(version, slots):
    """The slot that is the row's version, else the first after it, else the last; the current one if the row names none."""
    wanted = version_key(version)
    if version in slots.values() or wanted is None:
        return version if version in slots.values() else slots["current"]
    ordered = sorted(slots.values(), key=version_key)
    return next((v for v in ordered if version_key(v) >= wanted), ordered[-1])


def whole(row, column):
    """A whole number, 0 where the field is empty."""
    return int(float(row[column] or 0))


def group_of(row):
    dp = whole(row, "attention_dp_size")
    ranks = f" dp{dp}" if dp > 1 else ""
    return f"{row['system']} tp{whole(row, 'tp_size') or 1}{ranks} {row['backend']} {row['model_path'].rsplit('/', 1)[-1]}"


def arguments_of(row, version, kv):
    """The arguments of cli_estimate that a row states. Widths of 0 are absent."""
    given = dict(model_path=ALIASES.get(row["model_path"], row["model_path"]), system_name=row["system"], backend_name=row["backend"],
                 backend_version=version, isl=whole(row, "isl"), osl=whole(row, "osl"), batch_size=whole(row, "batch_size"))
    given.update({column: whole(row, column) for column in WIDTHS if whole(row, column)})
    if row["model_path"] not in OWN_FORMAT:
        given.update({name: row[name] for name in ("gemm_quant_mode", "moe_quant_mode") if row[name]})
    if kv == "row" and row["precision"] in KV_TYPES:
        given["kvcache_quant_mode"] = KV_TYPES[row["precision"]]
    return given


def formats_of(given):
    """Yields (what is said of them, arguments): the formats of weights and activations to try with measured tables."""
    if given["model_path"] in OWN_FORMAT and given["backend_name"] == "trtllm" and given["system_name"] in BLACKWELL:
        yield "activations in mxfp8", {**given, "moe_quant_mode": "w4a8_mxfp4_mxfp8"}
    yield "", given
    blocks = {name: "fp8_block" for name in ("gemm_quant_mode", "moe_quant_mode") if given.get(name) == "fp8"}
    if blocks:
        yield "fp8 as fp8_block", {**given, **blocks}


def attempts(given):
    """Yields (what is said of the tables, arguments), the one nearest to the row first."""
    types = [("", given)]
    if "kvcache_quant_mode" in given:
        types.append(("kv as the package derives it", {k: v for k, v in given.items() if k != "kvcache_quant_mode"}))
    for kv, changed in types:
        for formats, arguments in formats_of(changed):
            yield ", ".join(filter(None, ("silicon", formats, kv))), arguments
    yield "hybrid", {**given, "database_mode": "HYBRID"}


def reason(error):
    """The first line of an error, without the place of the package."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {re.sub(r' at /.*', '', text)[:160]}"


class Estimator:
    """Calls the package once per distinct row."""

    def __init__(self, estimate, version_slots, kv):
        self.estimate, self.version_slots, self.kv = estimate, version_slots, kv
        self.slots, self.known = {}, {}

    def version(self, row):
        pair = row["system"], row["backend"]
        if pair not in self.slots:
            self.slots[pair] = self.version_slots(*pair)
        return nearest(row["backend_version"], self.slots[pair]) if self.slots[pair] else None

    def call(self, given):
        """(TPOT in ms or None, note)."""
        first = None
        for tables, changed in attempts(given):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    result = self.estimate(**changed)
            except Exception as error:  # the package raises many types, all of them about one row
                first = first or reason(error)
                continue
            full = "; KV memory is too small for the batch" if result.kv_cache_warning else ""
            return float(result.tpot), f"{tables}{full}"
        return None, first

    def predict(self, row):
        version = self.version(row)
        if version is None:
            return None, f"no tables of {row['backend']} on {row['system']}"
        given = arguments_of(row, version, self.kv)
        key = tuple(sorted(given.items()))
        if key not in self.known:
            self.known[key] = self.call(given)
        tpot, note = self.known[key]
        return tpot, f"{row['backend']} {version} for {row['backend_version'] or 'no version'}: {note}"


def predicted_rows(rows, estimator, groups):
    """Yields the lines of the output, and reports progress every 200 rows."""
    for number, row in enumerate(rows, 1):
        tpot, note = estimator.predict(row)
        yield {"id": row["id"], "group": groups.get(row["id"], group_of(row)), "real_tpot_ms": row["silicon_tpot_ms"],
               "predicted_tpot_ms": "" if tpot is None else f"{tpot:.6f}", "note": note}
        if number % 200 == 0:
            print(f"aisimulate_points: {number} of {len(rows)} rows", file=sys.stderr)


def compare(peer, points):
    """Prints the median |error| of both over the rows that both predict, by group, and how often the simulator's is not larger."""
    ours = {row["id"]: abs(float(row["simulated_tpot_ms"]) / float(row["real_tpot_ms"]) - 1) for row in points}
    groups = collections.defaultdict(list)
    for row in peer:
        if row["predicted_tpot_ms"] and row["id"] in ours:
            groups[row["group"]].append((ours[row["id"]], abs(float(row["predicted_tpot_ms"]) / float(row["real_tpot_ms"]) - 1)))
    middle = {name: [100 * statistics.median(column) for column in zip(*pairs)] for name, pairs in groups.items()}
    large = [name for name in sorted(groups) if len(groups[name]) >= FEWEST_ROWS]
    print("| group | rows | simulator, median abs. error % | aisimulate % |\n|---|---|---|---|")
    for name in large:
        print(f"| {name} | {len(groups[name])} | {middle[name][0]:.1f} | {middle[name][1]:.1f} |")
    pairs = [pair for name in groups for pair in groups[name]]
    if not pairs:
        sys.exit("aisimulate_points: no row is predicted by both")
    both = [100 * statistics.median(column) for column in zip(*pairs)]
    print(f"| all | {len(pairs)} | {both[0]:.1f} | {both[1]:.1f} |")
    at_most = sum(middle[name][0] <= middle[name][1] for name in large)
    print(f"the simulator's error is not larger in {at_most} of {len(large)} groups of at least {FEWEST_ROWS} common rows")


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--groups-of")
    parser.add_argument("--kv", choices=("row", "checkpoint"), default="row")
    options = parser.parse_args()
    package = load_package()
    if package is None:
        return
    rows = [row for row in read_csv(options.points) if row["mode"] == "agg"]
    points = read_csv(options.groups_of) if options.groups_of else []
    groups = {row["id"]: row["group"] for row in points}
    peer = list(predicted_rows(rows, Estimator(*package, options.kv), groups))
    with open(options.out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "group", "real_tpot_ms", "predicted_tpot_ms", "note"])
        writer.writeheader()
        writer.writerows(peer)
    print(f"{len(rows)} rows: {sum(bool(row['predicted_tpot_ms']) for row in peer)} predicted; wrote {options.out}")
    if points:
        compare(peer, points)


if __name__ == "__main__":
    main()
