#!/usr/bin/env python3
"""Does the simulation from this machine's own profile tell how the engine serves? Calibrates, then serves and simulates a trace, several
times, and holds the median difference of every metric against a limit. A machine that others use is half as fast again in one second as in
the next. So calibration goes on between the runs, into the same profile: its means and the medians of the runs then see the same machine.
Where the medians are beyond the limit more runs are made, up to --most.

Exit status: 0 where all medians are within the limit; 1 where a metric is beyond it, to the same side, in three quarters of the runs; 42 (a
stage that was skipped) where medians are beyond it but the runs disagree.

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
KVLAB = str(ROOT / "kvlab")


def calibrate(arguments, minutes):
    model = ["--model", arguments.model] if arguments.model else []
    subprocess.run([KVLAB, "calibrate", "--cpu", "--minutes", str(minutes), "--out", str(arguments.out / "profile"), *model], check=True,
                   stdout=subprocess.DEVNULL)


def compare(arguments, seed):
    """Served and simulated, from the profile as it is now; {(axes, metric, statistic): simulated / engine - 1}."""
    out = arguments.out / f"run{seed}"
    profile = (arguments.out / "profile").resolve()
    subprocess.run([KVLAB, "run", str(ROOT / "experiments" / "sim_vs_real.yaml"), "--force", "--quiet", "--out", str(out), "--set", f"seed={seed}",
                    "--set", f"profile.kvlab.path={profile}", *arguments.options], check=True, stdout=subprocess.DEVNULL)
    differences = {}
    with open(out / "validation.csv") as stream:
        for row in csv.DictReader(stream):
            values = list(row.items())
            axes = " ".join(value for _, value in values[:list(row).index("seed")])
            differences[axes, row["metric"], row["statistic"]] = float(row["diff_frac"])
    return differences


def is_beyond(differences, limit):
    return 4 * max(sum(d > limit for d in differences), sum(d < -limit for d in differences)) >= 3 * len(differences)


def print_table(medians, count):
    print(f"simulated / engine - 1, the median of {count} runs")
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
    parser.add_argument("--first-minutes", type=float, default=1, help="of the calibration before the first run")
    parser.add_argument("--minutes", type=float, default=0.25, help="of calibration before each later run")
    parser.add_argument("--runs", type=int, default=3, help="at least")
    parser.add_argument("--most", type=int, default=9, help="runs, while the medians are beyond the limit")
    parser.add_argument("--limit", type=float, default=0.25)
    parser.add_argument("options", nargs="*", help="of kvlab run, behind --")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(arguments.out / "profile", ignore_errors=True)
    all_runs = []
    while True:
        calibrate(arguments, arguments.minutes if all_runs else arguments.first_minutes)
        all_runs.append(compare(arguments, len(all_runs) + 1))
        if len(all_runs) < arguments.runs:
            continue
        medians = {key: statistics.median(run[key] for run in all_runs) for key in all_runs[0]}
        print_table(medians, len(all_runs))
        (axes, metric, statistic), worst = max(medians.items(), key=lambda item: abs(item[1]))
        print(f"furthest off: {100 * abs(worst):.1f} %, {metric}_{statistic} of {axes}")
        if abs(worst) <= arguments.limit:
            return 0
        if len(all_runs) >= arguments.most:
            wrong = [key for key in medians if is_beyond([run[key] for run in all_runs], arguments.limit)]
            for axes, metric, statistic in wrong:
                print(f"beyond {100 * arguments.limit:.0f} % in three quarters of {len(all_runs)} runs: {metric}_{statistic} of {axes}")
            if not wrong:
                print(f"the medians of {len(all_runs)} runs are beyond {100 * arguments.limit:.0f} %, but the runs disagree: this machine is too uneven")
            return 1 if wrong else 42


if __name__ == "__main__":
    sys.exit(main())
