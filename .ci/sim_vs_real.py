#!/usr/bin/env python3
"""Does the simulation from this machine's own profile tell how the engine serves? Calibrates, simulates and serves, several times, and
holds the median difference of every metric against a limit. A machine that others use is slower in one run than in the next: where the
medians are beyond the limit more runs are made, up to --most.

  python3 .ci/sim_vs_real.py --out DIR [--model NAME] [-- KVLAB RUN OPTIONS]
"""
import argparse
import collections
import csv
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_once(arguments, out):
    """One calibration and what is measured right after it; {(axes, metric, statistic): simulated / engine - 1}."""
    out.mkdir(parents=True, exist_ok=True)
    profile = out / "profile"
    for folder in (profile, out / "run"):
        shutil.rmtree(folder, ignore_errors=True)
    model = ["--model", arguments.model] if arguments.model else []
    kvlab = str(ROOT / "kvlab")
    subprocess.run([kvlab, "calibrate", "--cpu", "--minutes", str(arguments.minutes), "--out", str(profile), *model], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run([kvlab, "run", str(ROOT / "experiments" / "sim_vs_real.yaml"), "--force", "--quiet", "--out", str(out / "run"), "--set",
                    f"profile.kvlab.path={profile.resolve()}", *arguments.options], check=True, stdout=subprocess.DEVNULL)
    differences = {}
    with open(out / "run" / "validation.csv") as stream:
        for row in csv.DictReader(stream):
            values = list(row.items())
            axes = " ".join(value for _, value in values[:list(row).index("seed")])
            differences[axes, row["metric"], row["statistic"]] = float(row["diff_frac"])
    return differences


def print_table(medians, count):
    print(f"simulated / engine - 1, the median of {count} runs, each with a calibration of its own")
    by_axes = collections.defaultdict(dict)
    for (axes, metric, statistic), value in medians.items():
        by_axes[axes][f"{metric}_{statistic}"] = value
    columns = list(next(iter(by_axes.values())))
    width = max(len(axes) for axes in by_axes)
    print(" " * width, *(f"{c:>9}" for c in columns))
    for axes, values in by_axes.items():
        print(f"{axes:<{width}}", *(f"{100 * values[c]:>+8.1f}%" for c in columns), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", default="", help="whose shape is calibrated; default: the probe")
    parser.add_argument("--minutes", type=float, default=0.7, help="of each calibration")
    parser.add_argument("--runs", type=int, default=3, help="at least")
    parser.add_argument("--most", type=int, default=9, help="runs, while the medians are beyond the limit")
    parser.add_argument("--limit", type=float, default=0.25)
    parser.add_argument("options", nargs="*", help="of kvlab run, behind --")
    arguments = parser.parse_args()
    all_runs = []
    while True:
        all_runs.append(run_once(arguments, arguments.out))
        if len(all_runs) < arguments.runs:
            continue
        medians = {key: statistics.median(run[key] for run in all_runs) for key in all_runs[0]}
        print_table(medians, len(all_runs))
        (axes, metric, statistic), worst = max(medians.items(), key=lambda item: abs(item[1]))
        print(f"furthest off: {100 * abs(worst):.1f} %, {metric}_{statistic} of {axes}")
        if abs(worst) <= arguments.limit:
            return 0
        if len(all_runs) >= arguments.most:
            print(f"more than {100 * arguments.limit:.0f} % after {len(all_runs)} runs")
            return 1


if __name__ == "__main__":
    sys.exit(main())
