"""Results of the shipped experiments, as hashes: a change of code that is to keep all results keeps these lines.

usage: tests/app/test_golden_summaries.py            the simulations, some seconds
       KVLAB_FULL=1 ...                              also replays, whose last digits depend on the CPU; the first line names it
       KVLAB_WRITE=1 ...                             writes golden_summaries.txt again; a changed line needs its reason in the commit's message
Experiments that run a model or need recorded data are left out.
"""

import csv
import hashlib
import os
import platform
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build/release/kvlab"))
FILE = Path(__file__).with_name("golden_summaries.txt")
SIMULATED = ("block_cache_mrc", "disaggregated", "fp8_or_bf16", "goodput", "lower_tiers", "prefix_routing", "quickstart", "rate_sweep")
REPLAYED = ("chunk_passes", "merging", "prefill_replay", "prompt_rewriters", "replay_file", "replay_probe", "serving_kv_policies")


def processor():
    """The widest vectors of this CPU, by which kernels are compiled."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if platform.system() == "Linux" else ""
    return "avx512" if "avx512f" in flags else "avx2" if "avx2" in flags else "other"


def digest(name):
    """Of summary.csv but for the runs' ids, which also depend on the version."""
    with tempfile.TemporaryDirectory(prefix="kvlab_golden_") as folder:
        command = [PROGRAM, "run", f"experiments/{name}.yaml", "--quiet", "--out", folder]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env={**os.environ, "KVLAB_NO_FIGURES": "1"})
        with open(Path(folder, "summary.csv"), newline="", encoding="utf-8") as file:
            rows = [[value for key, value in row.items() if key != "run"] for row in csv.DictReader(file)]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built: ./kvlab build")
class Summaries(unittest.TestCase):
    def test_results_are_those_recorded(self):
        if os.environ.get("KVLAB_WRITE"):
            lines = [f"{name} {digest(name)}\n" for name in SIMULATED + REPLAYED]
            FILE.write_text(f"processor {processor()}\n" + "".join(lines), encoding="utf-8")
        recorded = dict(line.split() for line in FILE.read_text(encoding="utf-8").splitlines())
        chosen = SIMULATED + (REPLAYED if os.environ.get("KVLAB_FULL") and recorded["processor"] == processor() else ())
        self.assertEqual({name: digest(name) for name in chosen}, {name: recorded[name] for name in chosen}, "KVLAB_WRITE=1 writes them again")


if __name__ == "__main__":
    unittest.main()
