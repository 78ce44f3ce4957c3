#!/usr/bin/env python3
"""Compares the simulation from this machine's own profile with the engine. Calibrates; then, several times, serves a trace and continues to
calibrate, all into one profile; then simulates the same traces from that profile, and lets `kvlab validate` compare. The speed of a shared
machine varies by half from one second to the next. Taken in turns, the profile's means and the runs' medians see the same machine. If
the medians of the runs are beyond the limit, more runs are made, up to --most. P99 is printed, and judged only for 100 requests or more:
with fewer it is the largest, so one interruption of the engine decides it.

Exit status: 0 where all medians are within the limit; 1 where a metric is beyond it, to the same side, in three quarters of the runs; 42 (a
stage that was skipped) where medians are beyond it but the runs disagree.

  python3 .ci/sim_vs_real.py --out DIR [--model NAME] [-- KVLAB RUN OPTIONS]
"""
import argparse
import csv
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVLAB = str(ROOT / "kvlab")
METRICS = [(metric, statistic) for metric in ("ttft", "tpot", "e2e") for statistic in ("mean", "p50", "p90", "p99")]
REQUESTS_OF_P99 = 100


def kvlab(*arguments):
    subprocess.run([KVLAB, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


class Comparison:
    def __init__(self, arguments):
        self.arguments = arguments
        self.out = arguments.out
        self.rate_per_s = 0
        self.requests = 0

    def calibrate(self, minutes):
        model = ["--model", self.arguments.model] if self.arguments.model else []
        recipes = ["--kv-policy", *self.arguments.timed_recipes] if self.arguments.timed_recipes else []
        kvlab("calibrate", "--cpu", "--minutes", minutes, "--out", self.out / "profile", *model, *recipes)

    def run(self, host, policy, seed, load):
        """One run of experiments/sim_vs_real.yaml; its folder."""
        folder = self.out / f"{host}_{self.arguments.policies.index(policy)}_{seed}"
        kvlab("run", ROOT / "experiments" / "sim_vs_real.yaml", "--force", "--quiet", "--out", folder, "--set", f"host={host}", "--set", f"seed={seed}",
              "--set", f"kv_policy={policy}", "--set", f"profile.kvlab.path={(self.out / 'profile').resolve()}", *load, *self.arguments.options)
        return folder

    def choose_rate(self):
        """The load in requests per second: a share of what the simulation from the first profile completes."""
        folder = self.run("sim", self.arguments.policies[0], 1, ["--set", f"load_frac={self.arguments.load_frac}"])
        with open(folder / "summary.csv") as stream:
            row = next(csv.DictReader(stream))
        self.rate_per_s = self.arguments.load_frac * float(row["capacity_per_s"])
        self.requests = int(row["requests"])

    def load(self):
        return ["--set", "load_frac=0", "--set", f"trace.generate.arrival.poisson.rate_per_s={self.rate_per_s:.6g}"]

    def serve(self, seed):
        """Every policy's run, and after each its share of a turn of calibration: the machine changes from one minute to the next."""
        for policy in self.arguments.policies:
            log_requests(self.run("engine", policy, seed, self.load()))
            self.calibrate(self.arguments.minutes / len(self.arguments.policies))

    def compare(self, seed):
        """{(policy, metric, statistic): simulated / engine - 1}, simulated from the profile as it is now."""
        differences = {}
        for i, policy in enumerate(self.arguments.policies):
            folder = self.run("sim", policy, seed, self.load())
            kvlab("validate", "--requests", self.out / f"engine_{i}_{seed}" / "requests.jsonl", "--against", folder, "--quiet")
            with open(folder / "validation.csv") as stream:
                for row in csv.DictReader(stream):
                    if (row["metric"], row["statistic"]) in METRICS:
                        differences[policy, row["metric"], row["statistic"]] = float(row["diff_frac"])
        return differences


def log_requests(folder):
    """Writes the requests that the engine served as a log that `kvlab validate` reads."""
    with open(folder / "requests.csv") as stream, open(folder / "requests.jsonl", "w") as log:
        for row in csv.DictReader(stream):
            seconds = {name: int(row[column]) * 1e-9 for name, column in (("arrival_time", "arrival_ns"), ("queued_ts", "queued_ns"),
                                                                          ("first_token_ts", "first_token_ns"), ("last_token_ts", "last_token_ns"))}
            log.write(json.dumps({"input_toks": int(row["prompt_tokens"]), "output_toks": int(row["output_tokens"]), **seconds}) + "\n")


def judged(differences, requests):
    """Without P99 of too few requests."""
    return {key: value for key, value in differences.items() if key[2] != "p99" or requests >= REQUESTS_OF_P99}


def is_beyond(differences, limit):
    return 4 * max(sum(d > limit for d in differences), sum(d < -limit for d in differences)) >= 3 * len(differences)


def print_table(medians, count, policies):
    print(f"simulated / engine - 1, the median of {count} runs")
    width = max(map(len, policies))
    print(" " * width, *(f"{metric + '_' + statistic:>9}" for metric, statistic in METRICS))
    for policy in policies:
        print(f"{policy:<{width}}", *(f"{100 * medians[policy, metric, statistic]:>+8.1f}%" for metric, statistic in METRICS), flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", default="", help="whose shape is calibrated; default: the probe")
    parser.add_argument("--policies", nargs="+", default=["{recipe: full}", "{recipe: snapkv, budget_tokens: 128}"])
    parser.add_argument("--timed-recipes", nargs="+", default=[], help="recipes that each calibration times in the engine (calibrate --kv-policy)")
    parser.add_argument("--load-frac", type=float, default=0.25, help="arrivals as a share of what is completed when all come at once")
    parser.add_argument("--first-minutes", type=float, default=1, help="of the calibration before the first run")
    parser.add_argument("--minutes", type=float, default=0.25, help="of calibration in each run, after each policy's turn")
    parser.add_argument("--runs", type=int, default=3, help="at least")
    parser.add_argument("--most", type=int, default=9, help="runs, while the medians are beyond the limit")
    parser.add_argument("--limit", type=float, default=0.25)
    parser.add_argument("options", nargs="*", help="of kvlab run, after --")
    return parser.parse_args()


def main():
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(arguments.out / "profile", ignore_errors=True)
    comparison = Comparison(arguments)
    comparison.calibrate(arguments.first_minutes)
    comparison.choose_rate()
    for count in range(1, arguments.most + 1):
        comparison.serve(count)
        if count < arguments.runs:
            continue
        all_runs = [comparison.compare(seed) for seed in range(1, count + 1)]
        medians = {key: statistics.median(run[key] for run in all_runs) for key in all_runs[0]}
        print_table(medians, count, arguments.policies)
        counted = judged(medians, comparison.requests)
        (policy, metric, statistic), worst = max(counted.items(), key=lambda item: abs(item[1]))
        print(f"furthest off: {100 * abs(worst):.1f} %, {metric}_{statistic} of {policy}", flush=True)
        if abs(worst) <= arguments.limit:
            return 0
    wrong = [key for key in counted if is_beyond([run[key] for run in all_runs], arguments.limit)]
    for policy, metric, statistic in wrong:
        print(f"beyond {100 * arguments.limit:.0f} % in three quarters of {count} runs: {metric}_{statistic} of {policy}")
    if not wrong:
        print(f"the medians of {count} runs are beyond {100 * arguments.limit:.0f} %, but the runs disagree: this machine is too uneven")
    return 1 if wrong else 42


if __name__ == "__main__":
    sys.exit(main())
