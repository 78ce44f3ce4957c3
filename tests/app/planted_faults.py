"""Plants faults in the simulator's sources, one at a time, and expects tests/app/random_experiments.py to find each.

usage: tests/app/planted_faults.py [--runs 200] [--seed N] [NAME ...]      the sources are restored after each; several minutes of builds
Exit status 1 if a fault is not found.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/release/kvlab"

# Name: (file, text, text in its place).
FAULTS = {
    "a finished request keeps its blocks": (
        "serving/replica_state.cpp",
        "  memory_.release(r);\n  if (outcome == Outcome::kCompleted &&",
        "  if (outcome != Outcome::kCompleted) memory_.release(r);\n  if (outcome == Outcome::kCompleted &&",
    ),
    "steps of a stretch do not get longer": (
        "serving/fast_forward.cpp",
        "                      times.slope,\n",
        "                      Picoseconds{},\n",
    ),
    "a preempted request waited from its last admission on": (
        "serving/metrics.cpp",
        "  const std::int64_t ttft = ns(r.first_token - r.arrival);\n",
        "  const std::int64_t ttft = ns(r.first_token - (r.preemptions > 0 ? r.scheduled : r.arrival));\n",
    ),
    "half of the bytes of a transfer arrive": (
        "serving/transfers.cpp",
        "    use->bytes += bytes;\n",
        "    use->bytes += use == &target.in ? bytes / 2 : bytes;\n",
    ),
}


def build():
    subprocess.run(["cmake", "--build", "build/release", "--target", "kvlab"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def found(runs, seed):
    """The first failure's text, or "" if there is none."""
    search = [sys.executable, "tests/app/random_experiments.py", "--runs", str(runs), "--seed", str(seed), "--keep", "build/planted_faults"]
    lines = subprocess.run(search, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    failures = [i for i, line in enumerate(lines) if line.startswith("FAILED")]
    return f"{len(failures)} of {runs} failed; {lines[failures[0] + 1]}" if failures else ""


def plant(name, runs, seed):
    path, text, fault = FAULTS[name]
    source = (ROOT / path).read_text(encoding="utf-8")
    if source.count(text) != 1:
        sys.exit(f"{path} has the text of '{name}' {source.count(text)} times: write the fault for today's sources")
    try:
        (ROOT / path).write_text(source.replace(text, fault), encoding="utf-8")
        build()
        return found(runs, seed)
    finally:
        (ROOT / path).write_text(source, encoding="utf-8")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*", default=list(FAULTS))
    asked = parser.parse_args(arguments)
    missed = 0
    try:
        for name in asked.names:
            text = plant(name, asked.runs, asked.seed)
            missed += not text
            print(f"{name}: {text or 'NOT FOUND'}", flush=True)
    finally:
        build()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
