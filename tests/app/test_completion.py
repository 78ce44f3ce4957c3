"""Completion scripts, run by bash as a shell runs them. Run: python3 tests/app/test_completion.py"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build" / "release" / "kvlab"))


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
@unittest.skipUnless(shutil.which("bash"), "bash is not installed")
class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.script = Path(cls.folder.name) / "kvlab.bash"
        cls.script.write_text(subprocess.run([PROGRAM, "completion", "bash"], cwd=ROOT, check=True, capture_output=True, text=True).stdout)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def complete(self, *words):
        """The words that bash offers for the last of these."""
        line = " ".join(f"'{word}'" for word in [PROGRAM, *words])
        run = f"source '{self.script}'; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _kvlab; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "--norc", "-c", run], cwd=ROOT, check=True, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_commands(self):
        self.assertEqual(self.complete("desc"), ["describe"])
        self.assertEqual(self.complete("trace", "insp"), ["inspect"])
        self.assertIn("plot", self.complete(""))

    def test_options(self):
        self.assertEqual(self.complete("run", "x.yaml", "--vll"), ["--vllm-args"])
        self.assertIn("--set", self.complete("run", "--"))

    def test_names(self):
        self.assertEqual(self.complete("run", "quick"), ["quickstart"])
        self.assertEqual(self.complete("list", "sched"), ["schedulers"])
        self.assertIn("sarathi", self.complete("describe", "sara"))
        self.assertEqual(self.complete("estimate", "--hardware", "a100-4"), ["a100-40gb"])
        self.assertEqual(self.complete("completion", "z"), ["zsh"])

    def test_commands_of_the_front_door(self):
        own = set(re.findall(r"^  (\w+)\) ", (ROOT / "kvlab").read_text().split("# ---- commands ----")[-1].split("\ncase $command in")[-1], re.MULTILINE))
        self.assertLessEqual(own - {"build"}, set(self.complete("")))
        self.assertTrue(own)

    def test_other_shells(self):
        for shell, text in (("zsh", "bashcompinit"), ("fish", "complete -c kvlab -n '__fish_use_subcommand'")):
            script = subprocess.run([PROGRAM, "completion", shell], cwd=ROOT, check=True, capture_output=True, text=True).stdout
            self.assertIn(text, script)
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=script, check=True, text=True)
        unknown = subprocess.run([PROGRAM, "completion", "csh"], capture_output=True, text=True)
        self.assertEqual(unknown.returncode, 2)


if __name__ == "__main__":
    unittest.main()
