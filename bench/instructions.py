#!/usr/bin/env python3
"""Instruction counts of five fixed jobs, compared with bench/instructions.json.

Valgrind's callgrind counts the instructions that the program's own code executes inside a run (execute_prepared). Libraries are left out, since
their code differs between processors. The counts are repeatable on any machine with the recorded compiler, so a limit of 3 % is not moved by noise.

  ./kvlab bench instructions            compares; exit status 1 above the limit, 42 where the counts cannot be compared
  ./kvlab bench instructions --update   writes the counts of this build

The record is a ceiling: --update refuses a job above it, unless the file gives the reason by hand: "raised": {JOB: REASON}.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOBS = ROOT / "bench" / "instructions"
RECORD = ROOT / "bench" / "instructions.json"
LIMIT_FRAC = 0.03
FUNCTIONS_KEPT = 40
FUNCTIONS_PRINTED = 8
CANNOT_COMPARE = 42

_NAMED = re.compile(r"(?P<key>fn|ob|cfn|cob|cfi|cfl|fl|fi|fe)=\((?P<id>\d+)\)(?: (?P<name>.*))?$")


def exclusive_costs(lines, program):
    """{function: instructions spent in it alone} of a callgrind file, for the functions of the object `program`."""
    names = {"ob": {}, "fn": {}}  # callgrind spells a name once and repeats its number
    costs = collections.Counter()
    current = {"ob": "", "fn": ""}
    is_call = False
    for line in lines:
        line = line.rstrip("\n")
        named = _NAMED.match(line)
        if named:
            kind = named["key"].removeprefix("c")
            if kind in names:
                if named["name"]:
                    names[kind][named["id"]] = named["name"]
                if kind == named["key"]:
                    current[kind] = names[kind].get(named["id"], "")
        elif line.startswith("calls="):
            is_call = True  # the next line is the cost of the call, which the called function has as its own
        elif line[:1] in "+-*" and line or line[:1].isdigit():
            if not is_call and current["ob"] == program:
                costs[current["fn"]] += int(line.split()[1])
            is_call = False
    return costs


def short_name(name, width=110):
    return name if len(name) <= width else name[: width - 3] + "..."


def count(program, job, folder):
    out = folder / f"{job.stem}.callgrind"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=kvlab::execute_prepared(*",
               str(program), "run", str(job), "--quiet", "--jobs", "1", "--out", str(folder / job.stem)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVLAB_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{job}: the run failed:\n{done.stderr[-2000:]}")
    with open(out) as stream:
        costs = exclusive_costs(stream, str(program.resolve()))
    if not costs:
        raise SystemExit(f"{job}: callgrind saw no instruction of execute_prepared")
    merged = collections.Counter()
    for name, cost in costs.items():
        merged[short_name(name)] += cost
    return {"instructions": sum(costs.values()), "functions": dict(merged.most_common(FUNCTIONS_KEPT))}


def measure(program):
    with tempfile.TemporaryDirectory() as folder:
        return {job.stem: count(program, job, pathlib.Path(folder)) for job in sorted(JOBS.glob("*.yaml"))}


def compiler_of(build):
    """Compiler and flags: with others the counts are others."""
    cache = (build / "CMakeCache.txt").read_text()

    def entry(key):
        found = re.search(rf"^{key}(?::\w+)?=(.*)$", cache, flags=re.MULTILINE)
        return found[1] if found else ""

    version = subprocess.run([entry("CMAKE_CXX_COMPILER"), "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    machine = subprocess.run([entry("CMAKE_CXX_COMPILER"), "-dumpmachine"], capture_output=True, text=True).stdout.strip()
    return " ".join(filter(None, [pathlib.Path(entry("CMAKE_CXX_COMPILER")).name, version, machine, entry("CMAKE_BUILD_TYPE"), entry("CMAKE_CXX_FLAGS")]))


def growth(before, after):
    """[(function, instructions more)], the largest first."""
    names = set(before["functions"]) | set(after["functions"])
    more = {name: after["functions"].get(name, 0) - before["functions"].get(name, 0) for name in names}
    return sorted(((name, d) for name, d in more.items() if d > 0), key=lambda item: -item[1])


def above_ceiling(recorded, measured, raised):
    """A line for each job that executes more instructions than recorded, without a reason in `raised`."""
    before = {name: job["instructions"] for name, job in recorded.items() if name not in raised}
    higher = [name for name in measured if measured[name]["instructions"] > before.get(name, measured[name]["instructions"])]
    return [f'{name}: {before[name]:,} -> {measured[name]["instructions"]:,}: above its ceiling; lower it, or give the reason: "raised": {{"{name}": "..."}}'
            for name in higher]


def compare(recorded, measured, out=sys.stdout):
    """Prints a line per job and, above the limit, the functions that grew. Returns the exit status."""
    status = 0
    for name in sorted(set(recorded) | set(measured)):
        if name not in recorded or name not in measured:
            print(f"{name}: {'not in bench/instructions.json' if name in measured else 'no such job any more'}; ./kvlab bench instructions --update", file=out)
            status = 1
            continue
        before, after = recorded[name]["instructions"], measured[name]["instructions"]
        change = after / before - 1
        too_many = after > before * (1 + LIMIT_FRAC)
        print(f"{name:<14} {before:>15,} -> {after:>15,}  {100 * change:+.2f} %{'  above the limit' if too_many else ''}", file=out)
        if too_many:
            status = 1
            for function, more in growth(recorded[name], measured[name])[:FUNCTIONS_PRINTED]:
                print(f"    +{more:,}  {function}", file=out)
    if status:
        print(f"limit: +{100 * LIMIT_FRAC:.0f} %. The record is a ceiling: lower the count, or give the reason in bench/instructions.json", file=out)
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--update", action="store_true", help="write the counts of this build to bench/instructions.json")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="build folder (default: build/release)")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("no valgrind: instructions are not counted (apt-get install valgrind)")
        return CANNOT_COMPARE
    compiler = compiler_of(arguments.build)
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {"compiler": "", "jobs": {}}
    if not arguments.update and recorded["compiler"] != compiler:
        print(f"the counts are of '{recorded['compiler']}', this build is of '{compiler}': not compared")
        return CANNOT_COMPARE
    measured = measure(arguments.build / "kvlab")
    if arguments.update:
        raised = recorded.get("raised", {})
        if higher := above_ceiling(recorded["jobs"], measured, raised):
            print("\n".join(higher))
            return 1
        RECORD.write_text(json.dumps({"compiler": compiler, "raised": raised, "jobs": measured}, indent=1) + "\n")
        for name, job in measured.items():
            print(f"{name:<14} {job['instructions']:>15,}")
        return 0
    return compare(recorded["jobs"], measured)


if __name__ == "__main__":
    sys.exit(main())
