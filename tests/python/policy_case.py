"""What the tests of policies in Python share."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


def import_error():
    """Why the package cannot be imported from a foreign directory; "" where it can be."""
    done = subprocess.run([sys.executable, "-c", "import kvlab"], cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{sys.executable} has no package kvlab (pip install .): {done.stderr.strip().splitlines()[-1]}"


MISSING = import_error()
if not MISSING:
    import kvlab


def serving(**changes):
    """More requests than 300 blocks hold, so that some are preempted."""
    generate = {
        "requests": 200,
        "arrival": {"poisson": {"rate_per_s": 40}},
        "prompt_tokens": {"uniform": {"min": 10, "max": 900}},
        "output_tokens": {"uniform": {"min": 1, "max": 200}},
    }
    base = {
        "name": "serving",
        "model": "llama-3.1-8b",
        "hardware": "h100",
        "scheduler": "sarathi",
        "timeline_interval_ms": 200,
        "max_model_len": 2048,
        "memory": {"num_blocks": 300},
        "trace": {"generate": generate},
    }
    return {**base, **changes}


@unittest.skipIf(MISSING, MISSING)
class Policies(unittest.TestCase):
    def setUp(self):
        self.place = Path(tempfile.mkdtemp(prefix="kvlab_policies_"))
        self.addCleanup(shutil.rmtree, self.place)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.place)

    def run_quietly(self, experiment, **options):
        return kvlab.run(experiment, quiet=True, **options)

    def files_of(self, results, table):
        """The table of each run, without the run's ID."""
        found = []
        for run in results.summary["run"]:
            text = (results.path / "runs" / run / table).read_text()
            self.assertIn(run, text)
            found.append(text.replace(run, "RUN"))
        return found

    def assert_twins(self, results):
        """The runs of a sweep have the same requests and timelines, and the same metrics."""
        for table in ("requests.csv", "timeline.csv"):
            files = self.files_of(results, table)
            self.assertGreater(len(files), 1)
            self.assertGreater(files[0].count("\n"), 5)
            for other in files[1:]:
                self.assertEqual(files[0], other, table)
        # The bounds of a step are known of built-in schedulers alone.
        metrics = results.summary.drop(columns=["run", *results.axes, "max_step_tokens", "max_step_seqs"], errors="ignore")
        for i in range(1, len(metrics)):
            self.assertEqual(metrics.iloc[0].astype(str).to_dict(), metrics.iloc[i].astype(str).to_dict())
