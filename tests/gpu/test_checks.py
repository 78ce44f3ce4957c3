"""Tests of checks.sh with made-up programs. Run: python3 tests/gpu/test_checks.py"""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

CHECKS = Path(__file__).with_name("checks.sh")
# Grades the full cache on a GPU as WRONG says, writes the output that the steps look for, and fails if a file `broken` is next to it.
KVLAB = """#!/bin/sh
[ -e "$(dirname "$0")/broken" ] && { echo 'kvlab: made up'; exit 2; }
out=; right=1
for word in "$@"; do
  case $last in --out) out=$word ;; esac
  case $word in backend=cuda) right=RIGHT ;; esac
  last=$word
done
[ "$1" = run ] && mkdir -p "$out" && printf 'task,recipe,length,exact_match_frac,swaps\\nniah,full,1024,%s,3\\nniah,snapkv,1024,0,0\\n' $right >"$out/summary.csv"
exit 0
"""


class Checks(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "tests").mkdir()
        self.program("kvlab", KVLAB.replace("RIGHT", "1"))
        self.program("tests/cuda_tests", "#!/bin/sh\necho '24 positions: mean KL 3e-05 nats'\n")

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def run_steps(self, *steps):
        done = subprocess.run([CHECKS, "--programs", self.folder, "--out", self.folder / "out", *steps], capture_output=True, text=True)
        report = self.folder / "out" / "report.txt"
        return done, report.read_text() if report.exists() else ""

    def test_steps_named_are_run_and_reported_with_their_figures(self):
        done, report = self.run_steps("golden", "swap", "accuracy")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        verdicts = [line.split()[:2] for line in report.splitlines() if line[:1].isalpha() and " s" in line]
        self.assertEqual(verdicts, [["golden", "passed"], ["swap", "passed"], ["accuracy", "passed"]])
        for figure in ("mean KL 3e-05", "3 swaps", "the full cache: 1 tasks and lengths graded alike"):
            self.assertIn(figure, report)

    def test_sparse_prefill_must_be_faster_the_fewer_blocks_are_listed(self):
        (self.folder / "bench").mkdir()
        for tenth, status in ((10, 0), (30, 1)):
            times = {"attention_prefill/bf16/SHAPE": 80, "sparse_prefill/bf16/SHAPE_s100": 100, "sparse_prefill/bf16/SHAPE_s50": 55}
            times["sparse_prefill/bf16/SHAPE_s10"] = tenth
            entries = [{"name": n.replace("SHAPE", "m8192_n0_q32_kv8_d128") + "/iterations:1/manual_time", "real_time": t} for n, t in times.items()]
            text = json.dumps({"benchmarks": entries})
            self.program("bench/kernel_bench", f"#!/bin/sh\nfor w; do case $w in --benchmark_out=*) echo '{text}' >\"${{w#*=}}\" ;; esac; done\n")
            done, report = self.run_steps("sparse")
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            self.assertIn("all blocks 1.25 times dense prefill; half of them 0.55", report)

    def test_a_failed_step_ends_in_status_1_and_the_next_one_runs(self):
        (self.folder / "broken").touch()
        done, report = self.run_steps("swap", "golden")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED", report)
        self.assertIn("kvlab: made up", report)
        self.assertIn("mean KL", report)

    def test_answers_that_differ_from_the_cpu_fail(self):
        self.program("kvlab", KVLAB.replace("RIGHT", "0.5"))
        done, report = self.run_steps("accuracy")
        self.assertEqual(done.returncode, 1)
        self.assertIn("niah 1024 0.5", report)

    def test_wrong_calls_name_what_is_there(self):
        done, _ = self.run_steps("goldn")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown step 'goldn'; steps: golden tests", done.stderr)
        (self.folder / "kvlab").unlink()
        done, _ = self.run_steps("golden")
        self.assertEqual(done.returncode, 2)
        self.assertIn("kvlab is not there", done.stderr)


if __name__ == "__main__":
    unittest.main()
