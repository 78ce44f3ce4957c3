"""Runs experiments drawn from the schema, each with fast-forward on and off, and checks conservation and equality of the results.

usage: tests/app/random_experiments.py [--runs 2000] [--seed N] [--first I] [--program PATH] [--keep FOLDER] [--jobs 2]
`--runs` counts experiments that ran; those that the program refuses with status 2 and a message are counted apart, by message.
Each failure is printed with the command that repeats it and kept in the folder. Exit status 1 if there is one.
"""

import argparse
import collections
import concurrent.futures
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))
from drawn_experiments import Draw  # noqa: E402
from result_checks import number, problems, rows, unequal_files  # noqa: E402

KINDS = ("schedulers", "orders", "predictors", "dispatchers", "systems", "block_caches", "kv", "hardware", "models")
MOST_SECONDS = 120
# Experiments are counted in which these columns of the summary are above 0: a check of preemptions needs runs that preempt.
COUNTED = ("preemptions", "swaps", "recompute_fallbacks", "prefix_hit_frac", "rejected", "completed", "slo_attainment_frac", "step_policy_frac", "transfers")


def names_of(program):
    lists = {kind: json.loads(subprocess.run([program, "list", kind, "--json"], check=True, capture_output=True, text=True).stdout) for kind in KINDS}
    lists["kv"] = [entry for entry in lists["kv"] if entry["kind"] == "recipe"]
    return {kind: sorted(entry["name"] for entry in entries) for kind, entries in lists.items()}


def schema_of(program):
    return json.loads(subprocess.run([program, "schema"], check=True, capture_output=True, text=True).stdout)


class Trial:
    """One experiment in a folder of its own: `text` is "" if it passed, what was found, or with `refused` the message."""

    def __init__(self, program, index, experiment, folder):
        self.program, self.index, self.folder = program, index, Path(folder)
        self.text, self.refused, self.met = "", False, set()
        self.file = self.folder / "experiment.yaml"
        self.file.write_text(json.dumps(experiment, indent=1), encoding="utf-8")

    def start(self, out, *options):
        command = [self.program, "run", str(self.file), "--out", str(self.folder / out), "--jobs", "1", "--quiet", *options]
        try:
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"not finished after {MOST_SECONDS} s")

    def run(self, damage=None):
        fast = self.start("fast")
        if fast.returncode == 2 and fast.stderr.startswith("kvlab: "):
            self.text, self.refused = fast.stderr.strip(), True
            return self
        slow = self.start("slow", "--fast-forward", "off")
        if damage is not None:
            damage(self.folder)
        found = [f"status {ran.returncode}: {ran.stderr.strip()[-600:]}" for ran in (fast, slow) if ran.returncode != 0]
        if not found:
            found = problems(self.folder / "fast") + [f"fast-forward changes {name}" for name in self.unequal()]
        self.text = "\n".join(found)
        self.met = {column for row in rows(self.folder / "fast", "summary.csv") for column in COUNTED if number(row.get(column)) not in (None, 0)}
        if rows(self.folder / "fast", "transfers.csv"):
            self.met.add("transfers")
        return self

    def unequal(self):
        return unequal_files(*(next(iter(sorted((self.folder / out / "runs").iterdir()))) for out in ("fast", "slow")))


def kind_of_refusal(text):
    """The message without names and numbers."""
    text = re.sub(r"^kvlab: \S+?: |\(.*?\)|'[^']*'", "", text.splitlines()[0])
    return re.sub(r"[\d.,]+", "N", text)[:90]


def trials(program, seed, first):
    names, schema = names_of(program), schema_of(program)
    index = first
    while True:
        yield index, Draw(schema, names, seed, index).experiment()
        index += 1


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--program", default=str(ROOT / "build/release/kvlab"))
    parser.add_argument("--keep", default="build/random_experiments", help="folder of failures")
    asked = parser.parse_args(arguments)
    print(f"seed {asked.seed}, {asked.runs} runs", flush=True)
    ran, failures, refusals, met = 0, [], collections.Counter(), collections.Counter()
    scratch = Path(tempfile.mkdtemp(prefix="kvlab_drawn_"))

    def one(drawn):
        index, experiment = drawn
        folder = scratch / str(index)
        folder.mkdir()
        trial = Trial(asked.program, index, experiment, folder).run()
        if trial.text and not trial.refused:
            kept = Path(asked.keep, f"{asked.seed}_{index}")
            shutil.copytree(folder, kept, dirs_exist_ok=True)
        shutil.rmtree(folder)
        return trial

    source = trials(asked.program, asked.seed, asked.first)
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        while ran < asked.runs:
            for trial in pool.map(one, [next(source) for _ in range(min(4 * asked.jobs, 2 * (asked.runs - ran) + 1))]):
                if trial.refused:
                    refusals[kind_of_refusal(trial.text)] += 1
                    continue
                ran += 1
                met.update(trial.met)
                if trial.text:
                    failures.append(trial)
                    print(f"FAILED: tests/app/random_experiments.py --seed {asked.seed} --first {trial.index} --runs 1\n{trial.text}", flush=True)
    shutil.rmtree(scratch)
    for text, count in refusals.most_common(40):
        print(f"{count:6} refused: {text}")
    print("experiments with " + ", ".join(f"{column} {met[column]}" for column in COUNTED))
    print(f"seed {asked.seed}: {ran} experiments ran, {sum(refusals.values())} were refused, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
