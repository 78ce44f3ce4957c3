"""A scheduler is edited and the program built again: the runs of that scheduler start, and no others. It builds the whole program in a copy,
which takes minutes, so it runs on request: KVLAB_EDIT_POLICY=1 python3 tests/front_door/test_edited_policy.py"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = """model: llama-3.1-8b
hardware: h100
scheduler: [vllm_v1, sarathi, orca]
seeds: 2
memory: {num_blocks: 600}
max_model_len: 2048
trace: {generate: {requests: 60, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: {fixed: {value: 300}}, output_tokens: {uniform: {min: 1, max: 80}}}}
"""


@unittest.skipUnless(os.environ.get("KVLAB_EDIT_POLICY") == "1", "KVLAB_EDIT_POLICY=1 asks for it")
class EditedPolicy(unittest.TestCase):
    def setUp(self):
        self.copy = Path(tempfile.mkdtemp(prefix="kvlab_edited_", dir=os.environ.get("TMPDIR")))
        self.addCleanup(shutil.rmtree, self.copy)
        for name in subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines():
            (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.copy / name)
        (self.copy / "exp.yaml").write_text(EXPERIMENT)
        self.do("cmake", "--preset", "release", "-DKVLAB_TESTS=OFF", "-DKVLAB_BENCH=OFF")

    def do(self, *command):
        return subprocess.run([*map(str, command)], cwd=self.copy, capture_output=True, text=True, check=True).stdout

    def started(self):
        """Builds, runs the experiment, and returns the schedulers of the runs that were done."""
        self.do("cmake", "--build", "build/release", "--target", "kvlab")
        return re.findall(r"^run \d+ of \d+: scheduler=(\w+)", self.do("build/release/kvlab", "run", "exp.yaml", "--jobs", "1"), re.MULTILINE)

    def edit(self, name):
        path = self.copy / name
        path.write_text(path.read_text() + "\n// edited\n")

    def test_only_its_own_runs_start(self):
        self.assertEqual(len(self.started()), 6)
        self.assertEqual(self.started(), [])
        self.edit("policies/scheduler/orca.cpp")
        self.assertEqual(self.started(), ["orca", "orca"])
        self.edit("policies/scheduler/fastgen.cpp")  # which none of them uses
        self.assertEqual(self.started(), [])
        self.edit("base/text.cpp")
        self.assertEqual(len(self.started()), 6)


if __name__ == "__main__":
    unittest.main()
