"""Tests of compare.py on made-up result folders. Run: python3 tests/parity/accuracy/test_compare.py"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMPARE = Path(__file__).with_name("compare.py")
SAMPLES = 200


def row(sample, wrong):
    return f"niah,1024,{sample},0,{int(sample not in wrong)},0.5,7,{2 if sample in wrong else -1},0.25\n"


def peer_files(folder, wrong):
    head = "task,length,sample,turn,exact,neg_log2,answer_bytes,first_wrong,min_margin\n"
    (folder / "full.csv").write_text(head + "".join(row(s, ()) for s in range(SAMPLES)))
    rows = "".join(f"snapkv,0.5,compressed,{row(s, wrong)}" for s in range(SAMPLES))
    (folder / "presses.csv").write_text("press,ratio,question," + head + rows)


def our_files(folder, *runs):
    """runs: (id, recipe, wrong, axes)."""
    (folder / "manifest.json").write_text(json.dumps({"runs": [{"run": run, "axes": axes} for run, _, _, axes in runs]}))
    head = "run,recipe,budget_tokens,task,length,sample,turn,exact,neg_log2,answer_bytes,first_wrong\n"
    rows = (f"{run},{recipe},512,niah,1024,{s},0,{int(s not in wrong)},0.5,7,{2 if s in wrong else -1}\n" for run, recipe, wrong, _ in runs for s in range(SAMPLES))
    (folder / "answers.csv").write_text(head + "".join(rows))


class CompareTest(unittest.TestCase):
    def compare(self, wrong, full_wrong=(), axes=None):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            peer_files(folder, wrong={3, 7})
            snapkv_axes = axes or {"kv_policy.compression_ratio": "0.50", "question": "compressed"}
            our_files(folder, ("a1", "full", full_wrong, {"question": "compressed"}), ("b2", "kvpress_snapkv", wrong, snapkv_axes))
            done = subprocess.run([sys.executable, COMPARE, folder, "--peer", folder], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout

    def test_equal_grades_pass(self):
        status, out = self.compare(wrong={3, 7})
        self.assertEqual(status, 0)
        self.assertIn("| snapkv | 0.5 | compressed | 200 | 200 | 198 | 0 | 0 |", out)

    def test_one_in_a_hundred_passes_and_is_listed(self):
        status, out = self.compare(wrong={3, 8})
        self.assertEqual(status, 0)
        self.assertIn("sample 7 turn 0 (niah, 1024): ours 1 (first wrong -1), peer 0 (first wrong 2), peer's margin 0.25", out)
        self.assertIn("sample 8 turn 0", out)

    def test_more_fail(self):
        status, out = self.compare(wrong={3, 8, 9})
        self.assertEqual(status, 1)
        self.assertIn("FAILED: snapkv 0.5 compressed", out)

    def test_the_full_cache_may_not_differ_at_all(self):
        self.assertEqual(self.compare(wrong={3, 7}, full_wrong={5})[0], 1)

    def test_what_was_not_run_is_named(self):
        status, out = self.compare(wrong={3, 7}, axes={"kv_policy.compression_ratio": "0.75", "question": "compressed"})
        self.assertEqual(status, 0)
        self.assertIn("not compared: snapkv 0.5 compressed", out)

    def test_nothing_to_pair(self):
        with tempfile.TemporaryDirectory() as name:
            peer_files(Path(name), wrong=())
            self.assertEqual(subprocess.run([sys.executable, COMPARE, name, "--peer", name], capture_output=True, check=False).returncode, 2)


if __name__ == "__main__":
    unittest.main()
