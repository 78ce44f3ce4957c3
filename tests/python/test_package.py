"""Tests of the installed Python package: python3 tests/python/test_package.py, with an interpreter that has it (pip install .)."""

import contextlib
import filecmp
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "release" / "kvlab"
TABLES = ("summary.csv", "requests.csv", "timeline.csv")
SMALL = {
    "name": "small",
    "model": "llama-3.1-8b",
    "hardware": "h100",
    "scheduler": ["vllm_v1", "sarathi"],
    "timeline_interval_ms": 500,
    "max_model_len": 2048,
    "trace": {
        "generate": {
            "requests": 60,
            "arrival": {"poisson": {"rate_per_s": 8}},
            "prompt_tokens": {"fixed": {"value": 300}},
            "output_tokens": {"uniform": {"min": 1, "max": 40}},
        }
    },
}
RATE = "trace.generate.arrival.poisson.rate_per_s"


def import_error():
    """Why the package cannot be imported from a foreign directory; "" where it can be."""
    done = subprocess.run([sys.executable, "-c", "import kvlab"], cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{sys.executable} has no package kvlab (pip install .): {done.stderr.strip().splitlines()[-1]}"


MISSING = import_error()
if not MISSING:
    import kvlab


@unittest.skipIf(MISSING, MISSING)
class Package(unittest.TestCase):
    def setUp(self):
        self.place = Path(tempfile.mkdtemp(prefix="kvlab_package_"))
        self.addCleanup(shutil.rmtree, self.place)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.place)


class Module(Package):
    @unittest.skipUnless(shutil.which("readelf"), "no readelf")
    def test_it_loads_after_any_other_library(self):
        """Thread-local variables of libstdc++ at a fixed place would make the import fail in hosts that have loaded it before, as workers of Ray have."""
        listed = subprocess.run(["readelf", "-rW", kvlab._kvlab.__file__], capture_output=True, text=True, check=True).stdout
        foreign = [line for line in listed.splitlines() if "R_X86_64_TPOFF64" in line and "@" in line]
        self.assertEqual(foreign, [])


class Runs(Package):
    def test_the_package_brings_its_data(self):
        self.assertEqual(kvlab._data.root(), Path(kvlab.__file__).resolve().parent / "data")
        self.assertIn("quickstart", set(kvlab.list("experiments")["name"]))
        results = kvlab.run("quickstart", {"scheduler": "sarathi", "trace.limit_requests": 50}, quiet=True)
        self.assertEqual((str(results.path), len(results.summary)), ("results/quickstart", 1))
        self.assertTrue(any("generated sample" in note for note in results.notes), results.notes)
        self.assertEqual(results.resolved["scheduler"], "sarathi")

    def test_a_mapping_is_an_experiment(self):
        results = kvlab.run(SMALL, quiet=True)
        self.assertEqual(list(results.summary["scheduler"]), ["vllm_v1", "sarathi"])
        self.assertTrue(Path("results/small.yaml").read_text().startswith("# Written by kvlab.run()"))
        again = kvlab.run({**SMALL, "scheduler": "sarathi"}, out="elsewhere/x", quiet=True)
        self.assertEqual((str(again.path), again.name, Path("elsewhere/x.yaml").is_file()), ("elsewhere/x", "small", True))
        Path("mine.yaml").write_text("# mine\n")
        with self.assertRaisesRegex(kvlab.InputError, "mine.yaml: was not written by kvlab.run"):
            kvlab.run(SMALL, out="mine", quiet=True)
        with self.assertRaisesRegex(kvlab.InputError, "names a folder"):
            kvlab.run({**SMALL, "name": "../x"}, quiet=True)

    @unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
    def test_results_are_those_of_the_command_line(self):
        Path("exp.yaml").write_text(json.dumps({**SMALL, "name": "exp"}))
        settings = {"seeds": 2, RATE: [4, 8.5], "trace.generate.output_tokens": {"fixed": {"value": 7}}, "scheduler": ("vllm_v1", {"sarathi": {"budget_tokens": 512}})}
        results = kvlab.run("exp.yaml", settings, out="ours", quiet=True)
        flat = ["seeds=2", f"{RATE}=[4, 8.5]", "trace.generate.output_tokens={fixed: {value: 7}}", "scheduler=[vllm_v1, {sarathi: {budget_tokens: 512}}]"]
        arguments = [word for text in flat for word in ("--set", text)]
        subprocess.run([PROGRAM, "run", "exp.yaml", *arguments, "--out", "theirs", "--quiet"], check=True)
        self.assertEqual(len(results.summary), 8)
        self.assertEqual(filecmp.cmpfiles("ours", "theirs", TABLES, shallow=False), (list(TABLES), [], []))
        self.assertEqual(Path("ours/resolved.yaml").read_bytes(), Path("theirs/resolved.yaml").read_bytes())

    def test_finished_runs_are_kept_and_force_does_them_again(self):
        (folder,) = (kvlab.run(SMALL, {"scheduler": "orca"}, quiet=True).path / "runs").iterdir()
        first = (folder / "manifest.json").stat().st_mtime_ns
        kvlab.run(SMALL, {"scheduler": "orca"}, quiet=True)
        self.assertEqual((folder / "manifest.json").stat().st_mtime_ns, first)
        kvlab.run(SMALL, {"scheduler": "orca"}, force=True, quiet=True)
        self.assertGreater((folder / "manifest.json").stat().st_mtime_ns, first)

    def test_errors_are_the_programs_lines(self):
        with self.assertRaisesRegex(kvlab.InputError, "unknown key 'schedular'|'schedular': misspelled"):
            kvlab.run({"schedular" if key == "scheduler" else key: value for key, value in SMALL.items()}, quiet=True)
        with self.assertRaisesRegex(ValueError, "no experiment of this name; did you mean 'quickstart'"):
            kvlab.run("quickstrat", quiet=True)
        with self.assertRaisesRegex(kvlab.InputError, "is a set; an experiment takes"):
            kvlab.run(SMALL, {"scheduler": {"vllm_v1", "orca"}}, quiet=True)
        with self.assertRaisesRegex(kvlab.InputError, "did you mean 'sarathi'"):
            kvlab.describe("sarathy")
        with self.assertRaisesRegex(kvlab.InputError, "unknown kind 'schedulrs'"):
            kvlab.list("schedulrs")
        with self.assertRaisesRegex(kvlab.InputError, "nowhere: no such folder"):
            kvlab.load("nowhere")

    def test_an_interrupt_keeps_complete_runs(self):
        earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may ignore it
        self.addCleanup(signal.signal, signal.SIGINT, earlier)
        sent = []

        def interrupt(done, total, requests, seconds):
            if done > 0 and not sent:
                sent.append(total)
                os.kill(os.getpid(), signal.SIGINT)

        with self.assertRaisesRegex(KeyboardInterrupt, "of 3000 runs (is|are) done and kept in results/small"):
            kvlab.run(SMALL, {"seeds": 1500}, progress=interrupt)
        done = len(kvlab.load("results/small").summary)
        self.assertTrue(sent == [3000] and 0 < done < 3000, (sent, done))
        self.assertEqual(len(kvlab.run(SMALL, {"seeds": 2}, quiet=True).summary), 4)  # the next call runs on
        with self.assertRaises(KeyboardInterrupt):  # and Python has its own handler back
            signal.raise_signal(signal.SIGINT)

    def test_progress_ends_with_all_runs(self):
        calls = []
        kvlab.run(SMALL, progress=lambda *at: calls.append(at))
        self.assertEqual(calls[-1][:2], (2, 2))
        self.assertEqual(calls[-1][2], 120)
        self.assertEqual(kvlab.progress.line(2, 4, 3000, 10.0), "[" + "#" * 15 + "." * 15 + "] 2/4 runs  300 req/s  10 s to go")
        said = io.StringIO()
        with contextlib.redirect_stderr(said):  # no terminal
            kvlab.run(SMALL, force=True)
        self.assertEqual(said.getvalue(), "")

    def test_a_callback_that_fails_does_not_end_the_sweep(self):
        with contextlib.redirect_stderr(io.StringIO()):
            hook, seen = sys.unraisablehook, []
            sys.unraisablehook = seen.append
            try:
                results = kvlab.run(SMALL, progress=lambda *at: 1 / 0)
            finally:
                sys.unraisablehook = hook
        self.assertEqual(len(results.summary), 2)
        self.assertIs(seen[0].exc_type, ZeroDivisionError)

    def test_a_damaged_run_is_a_warning(self):
        results = kvlab.run(SMALL, quiet=True)
        (results.path / "runs" / results.runs[0] / "summary.csv").write_text("cut")
        with self.assertWarnsRegex(RuntimeWarning, "is damaged"):
            kvlab.run(SMALL, quiet=True)

    def test_seeds_that_change_nothing_are_a_warning(self):
        sample = kvlab._data.root() / "traces" / "samples" / "azure_like.csv"
        recorded = {**SMALL, "scheduler": "sarathi", "max_model_len": 16384, "trace": {"file": sample, "limit_requests": 50}, "seeds": 3}
        with self.assertWarnsRegex(RuntimeWarning, "seeds change nothing in these runs"):
            results = kvlab.run(recorded, quiet=True)
        self.assertEqual(len(results.summary), 1)


class Sweeps(Package):
    def test_axes_are_added(self):
        results = kvlab.sweep(SMALL, {RATE: [4, 16], "seed": range(1, 3)}, quiet=True)
        self.assertEqual((len(results.summary), results.axes), (8, ["scheduler", RATE]))
        with self.assertRaisesRegex(kvlab.InputError, "axis 'seed' has no values"):
            kvlab.sweep(SMALL, {"seed": []})

    def test_frames(self):
        results = kvlab.sweep(SMALL, {RATE: [4, 16]}, quiet=True)
        requests = results.requests
        self.assertEqual(list(requests.columns[:5]), ["run", "scheduler", RATE, "seed", "request"])
        self.assertEqual(len(requests), 240)
        self.assertEqual(set(requests[requests[RATE] == 16]["run"]), set(results.summary[results.summary[RATE] == 16]["run"]))
        run = results.run(results.runs[2])
        self.assertEqual((len(run.requests), len(run.summary), run.manifest["state"]), (60, 1, "finished"))
        self.assertEqual(len(results.timeline.merge(run.timeline, on=["run", "replica", "time_ns"])), len(run.timeline))
        self.assertIs(results.summary, results.summary)
        with self.assertRaisesRegex(kvlab.InputError, "search.csv: there is no such table; tables that there are: requests, summary, timeline"):
            results.table("search")
        with self.assertRaisesRegex(kvlab.InputError, "4 runs have an ID that begins with ''"):
            results.run("")
        self.assertIn("<table", results._repr_html_())

    def test_pivot(self):
        results = kvlab.sweep(SMALL, {RATE: [4, 16], "seed": [1, 2]}, quiet=True)
        table = results.pivot("ttft_p50_ms", x="rate_per_s", series="scheduler")
        self.assertEqual((list(table.index), list(table.columns)), ([4, 16], ["vllm_v1", "sarathi"]))
        rows = results.summary.query("scheduler == 'sarathi'")
        self.assertAlmostEqual(table.loc[16, "sarathi"], rows[rows[RATE] == 16]["ttft_p50_ms"].mean())
        one = results.pivot("ttft_p50_ms", x="rate_per_s", where={"scheduler": "sarathi"})
        self.assertAlmostEqual(one.loc[16, "ttft_p50_ms"], table.loc[16, "sarathi"])
        with self.assertRaisesRegex(kvlab.InputError, "axis 'scheduler' has several values \\(vllm_v1, sarathi\\): name it as x or series"):
            results.pivot("ttft_p50_ms", x="rate_per_s")
        with self.assertRaisesRegex(kvlab.InputError, "no column 'tftt_p50_ms'; did you mean 'ttft_p50_ms'"):
            results.pivot("tftt_p50_ms", x="rate_per_s")

    def test_ambiguous_short_names_are_refused(self):
        results = kvlab.run(SMALL, quiet=True)
        self.assertEqual(results.column("b.tokens", of=["a.b.tokens", "a.tokens"]), "a.b.tokens")
        with self.assertRaisesRegex(kvlab.InputError, "'tokens' is the last part of several columns: a.b.tokens, a.tokens"):
            results.column("tokens", of=["a.b.tokens", "a.tokens"])

    def test_replay(self):
        sample = kvlab._data.root() / "traces" / "samples" / "probe_niah.safetensors"
        results = kvlab.replay(samples=sample, policies=["full", "snapkv", {"recipe": "kivi2"}], budget_tokens=[64, 128], quiet=True)
        self.assertEqual(list(results.summary["recipe"]), ["full", "snapkv", "snapkv", "kivi2"])
        mass = list(results.summary["attention_mass"])
        self.assertTrue(mass[0] == 1 and mass[1] < mass[2] < 1, mass)
        with self.assertRaisesRegex(kvlab.InputError, r"^run 0002 \(.*\) failed: .*a budget of 8 tokens") as raised:
            kvlab.replay(samples=sample, policies="snapkv", budget_tokens=[64, 8], name="partly", quiet=True)
        self.assertEqual(list(raised.exception.results.summary["budget_tokens"]), [64])  # of the run that is complete
        shipped = kvlab.replay("replay_file", set={"kv_policy": {"recipe": "tova", "budget_tokens": 64}}, quiet=True)
        self.assertEqual(len(shipped.summary), 1)
        with self.assertRaisesRegex(kvlab.InputError, "budget_tokens= is of recipes given by name"):
            kvlab.replay(samples=sample, policies=[{"recipe": "snapkv"}], budget_tokens=64, quiet=True)
        with self.assertRaisesRegex(kvlab.InputError, r"kept.csv: there is no such table.*output=\{\"kept\": True\}"):
            results.table("kept")
        listed = kvlab.replay(samples=sample, policies="snapkv", budget_tokens=64, output={"kept": True}, name="kept", quiet=True)
        kept = listed.table("kept")
        self.assertIn("kept", listed.tables)
        self.assertTrue(all(len(tokens) == 64 and tokens == sorted(set(tokens)) for tokens in kept["kept"]))
        again = kvlab.replay("replay_file", set={"kv_policy": "snapkv"}, output={"kept": True}, out="kept_file", quiet=True)
        self.assertIn("kept", again.tables)
        with self.assertRaisesRegex(kvlab.InputError, "needs samples= and policies="):
            kvlab.replay(samples=sample)

    def test_kept_steps_are_those_of_decoding_press(self):
        sample = kvlab._data.root() / "traces" / "samples" / "probe_niah.safetensors"
        policy = {"recipe": "kvpress_knorm", "budget_tokens": 64, "trigger": {"every_n": {"steps": 4, "from": "decode_only"}}}
        results = kvlab.replay(samples=sample, policies=[policy], output={"kept_steps": True}, name="kept_steps", quiet=True)
        table = results.table("kept_steps")
        found = {(row.step, row.layer, row.kv_head): row.kept for row in table.itertuples()}
        from decoding_press import decoding_press_knorm, recorded_keys

        expected = decoding_press_knorm(*recorded_keys(sample), compression_interval=4, target_size=64)
        self.assertEqual(sorted({step for step, _, _ in found}), [4, 8, 12])
        self.assertEqual(found, expected)

    def test_lists_and_descriptions(self):
        self.assertIn("schedulers", set(kvlab.list()["kind"]))
        self.assertIn("snapkv", set(kvlab.list("kv")["name"]))
        sarathi = kvlab.describe("sarathi")
        self.assertEqual(sarathi["kind"], "schedulers")
        self.assertIn("budget_tokens", {p["key"] for p in sarathi["parameters"]})
        with self.assertRaisesRegex(kvlab.InputError, "is no item of kind 'models'; it is of schedulers"):
            kvlab.describe("sarathi", kind="models")

    def test_compare(self):
        a = kvlab.run(SMALL, {"scheduler": "vllm_v1", "seeds": 3}, out="a", quiet=True)
        b = kvlab.run(SMALL, {"scheduler": "orca", "seeds": 3}, out="b", quiet=True)
        rows = kvlab.compare(a, "b").set_index("metric")
        row = rows.loc["e2e_mean_ms"]
        self.assertAlmostEqual(row["a"], a.summary["e2e_mean_ms"].mean(), places=6)
        self.assertAlmostEqual(row["difference"], (b.summary["e2e_mean_ms"] - a.summary["e2e_mean_ms"]).mean(), places=6)
        self.assertTrue(row["pairs"] == 3 and row["ci95_low"] < row["difference"] < row["ci95_high"], row)
        self.assertGreater(len(kvlab.compare(a, b, every=True)), len(rows))

    def test_shards_by_ray(self):
        """A module in place of Ray, which runs each task when it is asked for; the shards and the merge are real."""

        class Ray:
            tasks = []
            is_initialized = staticmethod(lambda: True)
            cluster_resources = staticmethod(lambda: {"CPU": 3.0})
            get = staticmethod(lambda tasks: [task() for task in tasks])

            @staticmethod
            def remote(function):
                def start(*arguments):
                    Ray.tasks.append(arguments)
                    return lambda: function(*arguments)

                return type("Remote", (), {"remote": staticmethod(start)})

        sys.modules["ray"] = Ray
        self.addCleanup(sys.modules.pop, "ray")
        results = kvlab.sweep(SMALL, {"seed": [1, 2, 3]}, ray=True, out="by_ray")
        self.assertEqual([task[4] for task in Ray.tasks], ["1/3", "2/3", "3/3"])
        kvlab.sweep(SMALL, {"seed": [1, 2, 3]}, out="whole", quiet=True)
        self.assertEqual(filecmp.cmpfiles("by_ray", "whole", TABLES, shallow=False), (list(TABLES), [], []))
        self.assertEqual((str(results.path), len(results.summary)), ("by_ray", 6))


class FiguresAndCommands(Package):
    def test_figures(self):
        results = kvlab.sweep(SMALL, {RATE: [4, 16]}, quiet=True)
        (one,) = results.plot("tail", metric="ttft", statistic="p99", x=RATE, series="scheduler", size=[3, 2])
        self.assertEqual(one, results.path / "figures" / "tail.png")
        self.assertIn("data:image/png;base64,", results.plot("cdf_ttft")._repr_html_())
        with self.assertRaisesRegex(kvlab.InputError, "unknown 'sise'; did you mean 'size'"):
            results.plot("cdf_ttft", sise=[3, 2])

    def test_report(self):
        results = kvlab.run(SMALL, quiet=True)
        self.assertGreater(results.report().stat().st_size, 1_000_000)

    def test_the_command_line(self):
        def kvlab_command(*arguments, **environment):
            return subprocess.run([sys.executable, "-m", "kvlab", *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment})

        Path("exp.yaml").write_text(json.dumps({**SMALL, "name": "exp"}))
        done = kvlab_command("run", "exp.yaml", KVLAB_NO_FIGURES="1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("wrote results/exp", done.stdout)
        self.assertFalse(Path("results/exp/figures").exists())
        drawn = kvlab_command("run", "exp.yaml")
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        self.assertTrue(Path("results/exp/figures/cdf_ttft.png").is_file())
        wrong = kvlab_command("describe", "sarathy")
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
        self.assertIn("did you mean 'sarathi'", wrong.stderr)
        self.assertEqual(kvlab_command("plot", "nowhere").returncode, 2)

    def test_values_of_set_are_yaml(self):
        from kvlab.yaml_text import flow, overrides

        self.assertEqual(overrides({"a.b": [1, 2.5, True, None, "x"]}), ["a.b=[1, 2.5, true, null, x]"])
        self.assertEqual(flow({"fixed": {"value": 3}}), "{fixed: {value: 3}}")
        self.assertEqual(flow("a: b"), "'a: b'")
        self.assertEqual(flow(Path("x/y")), "x/y")
        import numpy

        self.assertEqual(flow([numpy.float64(2), numpy.int64(3), numpy.arange(2)]), "[2.0, 3, [0, 1]]")


if __name__ == "__main__":
    warnings.simplefilter("error", RuntimeWarning)
    unittest.main()
