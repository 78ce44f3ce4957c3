"""`kvlab why` and `output: {keep: summary}` of the program that is built. Run: python3 tests/front_door/test_why.py"""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "release" / "kvlab"
SMALL = """name: small
model: llama-3.1-8b
hardware: h100
scheduler: vllm_v1
trace: {generate: {requests: 60, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: {fixed: {value: 300}}, output_tokens: {uniform: {min: 1, max: 80}}}}
memory: {num_blocks: 60}
max_model_len: 900
slo: {ttft_ms: 100, tpot_ms: 20}
timeline_interval_ms: 100
"""


@unittest.skipUnless(PROGRAM.is_file(), "the program is not built: ./kvlab build")
class Why(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvlab_why_test_")
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)
        (self.top / "small.yaml").write_text(SMALL)

    def call(self, *arguments):
        done = subprocess.run([str(PROGRAM), *arguments], cwd=self.top, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_parts_add_up_to_the_metric_and_tries_are_sorted(self):
        self.assertEqual(self.call("run", "small.yaml", "--out", "r")[0], 0)
        before = sorted(str(path) for path in (self.top / "r").rglob("*"))
        status, out, err = self.call("why", "r", "--metric", "ttft_max_ms", "--json", "--seconds", "30")
        self.assertEqual((status, err), (0, ""))
        (run,) = json.loads(out)["runs"]
        self.assertEqual(run["slowest"], 1)
        self.assertAlmostEqual(sum(run["parts_ms"].values()), run["value"], delta=0.001)
        self.assertGreater(run["parts_ms"]["queued"], 0)
        self.assertTrue(any("KV memory was full" in text for text in run["full"]), run["full"])
        values = [t["value"] for t in run["tried"] if t["value"] is not None]
        self.assertGreater(len(values), 3)
        self.assertEqual(values, sorted(values))
        two = next(t for t in run["tried"] if t["set"] == ["replicas=2"])
        self.assertLess(two["value"], run["value"])
        self.assertEqual(before, sorted(str(path) for path in (self.top / "r").rglob("*")))

    def test_an_unknown_metric_or_run_is_refused(self):
        self.call("run", "small.yaml", "--out", "r", "--quiet")
        for option, text in (("--metric", "is no metric that can be explained"), ("--run", "has no run")):
            status, _, err = self.call("why", "r", option, "nosuch")
            self.assertEqual(status, 2)
            self.assertIn(text, err)

    def test_a_run_that_keeps_its_summary(self):
        self.assertEqual(self.call("run", "small.yaml", "--out", "all", "--quiet")[0], 0)
        self.assertEqual(self.call("run", "small.yaml", "--out", "few", "--quiet", "--set", "output.keep=summary")[0], 0)
        (run,) = (self.top / "few" / "runs").iterdir()
        self.assertEqual(sorted(path.name for path in run.iterdir()), ["manifest.json", "resolved.yaml", "summary.csv"])
        rows = [(self.top / name / "summary.csv").read_text().splitlines()[1].split(",", 1)[1] for name in ("all", "few")]
        self.assertEqual(rows[0], rows[1])
        status, _, err = self.call("why", "few", "--no-try")
        self.assertEqual(status, 2)
        self.assertIn("keep: summary", err)
        self.assertIn("done again", self.call("why", "few", "--seconds", "0")[1])


if __name__ == "__main__":
    unittest.main()
