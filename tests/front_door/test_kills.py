"""Sweeps that share runs are killed (-9) at random moments; nothing finished is lost, and in the end every byte equals that
of undisturbed sweeps. Run: python3 tests/front_door/test_kills.py; KVLAB_KILLS=100 and KVLAB_KILLS_SEED=2 make it more and another."""

import json
import os
import random
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build" / "release" / "kvlab"))
KILLS = int(os.environ.get("KVLAB_KILLS", "8"))
KILLS_OF_A_FOLDER = 5
EXPERIMENT = """model: llama-3.1-8b
hardware: h100
scheduler: [vllm_v1, sarathi, orca]
seeds: 3
memory: {num_blocks: 600}
max_model_len: 2048
timeline_interval_ms: 500
trace: {generate: {requests: 400, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: {fixed: {value: 300}}, output_tokens: {uniform: {min: 1, max: 80}}}}
"""
SWEEPS = ([], ["--set", "scheduler=[sarathi, fastgen]"], ["--set", "seeds=5", "--set", "scheduler=orca"], ["--set", "memory.num_blocks=[500, 600]"])


MANY = EXPERIMENT.replace("[vllm_v1, sarathi, orca]", "vllm_v1").replace("seeds: 3", "seeds: 300").replace("requests: 400", "requests: 40")


def start(folder, options):
    return subprocess.Popen([PROGRAM, "run", "exp.yaml", "--quiet", "--jobs", "2", "--out", folder.name, *options], cwd=folder.parent, stderr=subprocess.PIPE,
                            env={**os.environ, "KVLAB_PROFILES": str(ROOT / "profiles"), "KVLAB_RECIPES": str(ROOT / "policies" / "kv" / "recipes")})


def bytes_of(run):
    """{name: bytes} of a run's folder; of its manifest all but how long it took."""
    files = {path.name: path.read_bytes() for path in run.iterdir()}
    manifest = json.loads(files["manifest.json"])
    del manifest["wall_s"]
    return {**files, "manifest.json": manifest}


def finished(folder):
    return {run.name: run for run in (folder / "runs").glob("[!.]*")} if (folder / "runs").is_dir() else {}


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
class Kills(unittest.TestCase):
    def setUp(self):
        self.place = Path(tempfile.mkdtemp(prefix="kvlab_kills_"))
        self.addCleanup(shutil.rmtree, self.place)
        (self.place / "exp.yaml").write_text(EXPERIMENT)
        self.calm = self.place / "calm"
        began = time.monotonic()
        self.complete(self.calm)
        self.seconds = (time.monotonic() - began) / (len(SWEEPS) + 1)
        self.runs = {name: bytes_of(run) for name, run in finished(self.calm).items()}

    def complete(self, folder):
        for options in (*SWEEPS, SWEEPS[0]):
            sweep = start(folder, options)
            _, heard = sweep.communicate(timeout=60)
            self.assertEqual((sweep.returncode, heard), (0, b""))

    def kill(self, folder, chance):
        """Returns whether the sweep was still at work."""
        options = [*chance.choice(SWEEPS), *(["--force"] if chance.random() < 0.4 else [])]
        sweep = start(folder, options)
        time.sleep(chance.uniform(0, 1.2 * self.seconds))
        was_at_work = sweep.poll() is None
        sweep.kill()
        _, heard = sweep.communicate()
        self.assertEqual(heard, b"")
        return was_at_work

    def test_nothing_is_lost(self):
        chance = random.Random(int(os.environ.get("KVLAB_KILLS_SEED", "1")))
        killed = 0
        while killed < KILLS:
            folder = self.place / f"rough{killed}"
            before = set()
            for _ in range(KILLS_OF_A_FOLDER):
                killed += self.kill(folder, chance)
                there = finished(folder)
                self.assertLessEqual(before, set(there))
                for name, run in there.items():
                    self.assertEqual(bytes_of(run), self.runs[name])
                before = set(there)
            self.complete(folder)
            self.assertEqual({name: bytes_of(run) for name, run in finished(folder).items()}, self.runs)
            for table in self.calm.glob("*.csv"):
                self.assertEqual((folder / table.name).read_bytes(), table.read_bytes(), table.name)
            self.assertEqual(list((folder / "runs").glob(".*")), [])
            shutil.rmtree(folder)
        print(f"{killed} kills, {len(self.runs)} runs in {len(SWEEPS)} sweeps that share them: every byte is as undisturbed")


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
class ManyShortRuns(unittest.TestCase):
    """They get their names together, after one sync."""

    def setUp(self):
        self.place = Path(tempfile.mkdtemp(prefix="kvlab_kills_"))
        self.addCleanup(shutil.rmtree, self.place)
        (self.place / "exp.yaml").write_text(MANY)
        began = time.monotonic()
        self.assertEqual(self.sweep("calm"), (0, b""))
        self.seconds = time.monotonic() - began
        self.runs = {name: bytes_of(run) for name, run in finished(self.place / "calm").items()}
        self.assertEqual(len(self.runs), 300)

    def sweep(self, name, options=()):
        run = start(self.place / name, options)
        _, heard = run.communicate(timeout=120)
        return run.returncode, heard

    def test_a_kill_leaves_whole_runs_or_none(self):
        chance = random.Random(int(os.environ.get("KVLAB_KILLS_SEED", "1")))
        folder, before, partly = self.place / "rough", 0, 0
        for _ in range(2 * KILLS):
            sweep = start(folder, ["--force"] if chance.random() < 0.3 else [])
            time.sleep(chance.uniform(0, 0.7 * self.seconds))
            sweep.kill()
            sweep.communicate()
            there = finished(folder)
            self.assertGreaterEqual(len(there), before)
            for name, run in there.items():
                self.assertEqual(bytes_of(run), self.runs[name])
            before = len(there)
            partly += 0 < before < 300
            if before == 300:
                shutil.rmtree(folder)
                before = 0
        self.assertGreater(partly, 0, "no kill fell between two syncs")
        self.assertEqual(self.sweep("rough"), (0, b""))
        self.assertEqual({name: bytes_of(run) for name, run in finished(folder).items()}, self.runs)
        self.assertEqual(list((folder / "runs").glob(".*")), [])

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "a small disk is mounted")
    def test_a_full_disk_is_reported_for_each_run_that_it_hits(self):
        (self.place / "full").mkdir()
        script = f"mount -t tmpfs -o size=1m tmpfs full && {{ {PROGRAM} run exp.yaml --quiet --jobs 2 --out full; echo status $?; cp -r full/runs kept; }}"
        done = subprocess.run(["unshare", "-m", "bash", "-c", script], cwd=self.place, capture_output=True, text=True,
                              env={**os.environ, "KVLAB_PROFILES": str(ROOT / "profiles"), "KVLAB_RECIPES": str(ROOT / "policies" / "kv" / "recipes")})
        self.assertNotIn("status 0", done.stdout)
        self.assertRegex(done.stderr, r"run \d{4} .* failed: .*cannot be written: No space left on device")
        kept = {run.name: run for run in (self.place / "kept").glob("[!.]*")}
        self.assertGreater(len(kept), 0)
        self.assertLess(len(kept), 300)
        for name, run in kept.items():
            self.assertEqual(bytes_of(run), self.runs[name])
        self.assertEqual(list((self.place / "kept").glob(".*")), [])


if __name__ == "__main__":
    unittest.main()
