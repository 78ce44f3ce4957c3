"""tests/app/large_sweep.sh with few runs: shards, one of them killed and run again, merge to the bytes of one program's results."""

import os
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build/release/kvlab"))


class LargeSweep(unittest.TestCase):
    @unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built: ./kvlab build")
    def test_shards_merge_to_the_same_bytes(self):
        done = subprocess.run([str(ROOT / "tests/app/large_sweep.sh"), "960"], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("equal: 960 runs of one program and of four shards", done.stdout)


if __name__ == "__main__":
    unittest.main()
