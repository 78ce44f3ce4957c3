"""Inputs after public reports, a test for each folder of the recorded data. Run: python3 tests/app/test_field2.py

Skipped where the recorded data is absent (KVLAB_DATA names its folder). Each kind has a test on inputs of this project, too.
"""

import csv
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build" / "release" / "kvlab"))
FOLDER = Path(os.environ.get("KVLAB_DATA") or ROOT.parent / "shared" / "data") / "field2"
REPORT = ROOT / "python" / "kvlab" / "report" / "report.py"


def python_with_package():
    """An interpreter that has the package kvlab, or None."""
    for python in (sys.executable, str(ROOT / "build" / "ci_python" / "bin" / "python")):
        if shutil.which(python) and subprocess.run([python, "-c", "import kvlab"], cwd=tempfile.gettempdir(), capture_output=True, check=False).returncode == 0:
            return python
    return None


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
@unittest.skipUnless(FOLDER.is_dir(), f"no recorded data in {FOLDER}")
class Field(unittest.TestCase):
    def setUp(self):
        self.place = Path(tempfile.mkdtemp(prefix="kvlab_field2_"))
        self.addCleanup(shutil.rmtree, self.place)

    def inputs(self, name):
        """A copy of a folder of the recorded data, which runs may write into."""
        if not (FOLDER / name).is_dir():
            self.skipTest(f"no {FOLDER / name}")
        shutil.copytree(FOLDER / name, self.place / "in")
        return self.place / "in"

    def call(self, *arguments, cwd=None, **options):
        return subprocess.run([PROGRAM, *map(str, arguments)], cwd=cwd or self.place, capture_output=True, text=True, check=False, timeout=120, **options)

    def succeed(self, *arguments, cwd=None):
        """A call that must succeed."""
        done = self.call(*arguments, cwd=cwd)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done

    def run_rows(self, *arguments, cwd=None):
        """The rows of summary.csv of a run."""
        out = self.place / f"out{len(list(self.place.glob('out*')))}"
        done = self.succeed("run", *arguments, "--out", out, cwd=cwd)
        self.said = done.stdout + done.stderr
        with open(out / "summary.csv", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def column(self, rows, name):
        return [float(row[name]) for row in rows]

    def assert_refused(self, done, *texts):
        """Status 2, one line of at most 1,000 characters that has the texts."""
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr[:2000])
        self.assertLess(len(done.stderr), 1000)
        for text in texts:
            self.assertIn(text, done.stderr)


class Serving(Field):
    def test_01_a_store_is_asked_when_a_request_is_taken(self):
        (row,) = self.run_rows("e.yaml", cwd=self.inputs("01-store-lookup-at-arrival"))
        self.assertAlmostEqual(float(row["prefix_hit_frac"]), 0.638, delta=0.001)
        self.assertLess(float(row["duration_s"]), 8.2)

    def test_02_prompts_of_a_model_with_experts(self):
        folder = self.inputs("02-gpt-oss-prefill-tp")
        one, two = self.column(self.run_rows("e.yaml", cwd=folder), "requests_per_s")
        self.assertAlmostEqual(two / one, 7.67 / 4.75, delta=0.1)
        self.assertGreater(one, 4.75, "measured: 4.75 requests/s")
        self.assertLess(one, 1.9 * 4.75, "measured: 4.75 requests/s, with an older kernel than that of the table")
        rates = self.column(self.run_rows("pd.yaml", cwd=folder), "requests_per_s")
        for rate, measured in zip(rates, (14.7, 14.5, 16.9, 19.8), strict=True):
            self.assertGreater(rate, 0.9 * measured, f"measured: {measured} requests/s; {rates}")
            self.assertLess(rate, 1.35 * measured, f"measured: {measured} requests/s; {rates}")

    def test_06_four_ranks_over_pcie(self):
        pair, both = self.run_rows("e.yaml", cwd=self.inputs("06-pcie-allreduce-4-ranks"))
        self.assertGreater(float(pair["requests_per_s"]), 0.95, "measured: 1 request/s and 408 output tokens/s")
        self.assertGreater(float(both["requests_per_s"]), 0.95, "measured: 1 request/s")
        self.assertLess(float(pair["itl_mean_ms"]), 11, "measured: 7.2 ms")
        self.assertLess(float(pair["itl_mean_ms"]), 0.8 * float(both["itl_mean_ms"]), "measured: 30 % below that of two that do both")

    def test_08_stages_of_rates_and_prompts_that_come_again(self):
        self.inputs("08-rate-ladder")
        ladder = self.place / "ladder.yaml"
        ladder.write_text("""name: ladder
model: llama-3.1-8b
hardware: h100
scheduler: vllm_v1
trace:
  generate:
    requests: 330
    arrival: {stages: [{rate_per_s: 3, for_s: 20, pause_s: 30}, {rate_per_s: 15, for_s: 10, pause_s: 10}, {rate_per_s: 6, for_s: 20}]}
    shared_prefix: {num_groups: 15, prompts_per_group: 5, tokens: 640}
    prompt_tokens: 160
    output_tokens: 20
""")
        (row,) = self.run_rows(ladder)
        # 15 prompts are computed whole, 60 but for the prefix of 640, and 255 are found but for the block with their last token.
        computed = 15 * 800 + 60 * 160 + 255 * 16
        self.assertAlmostEqual(float(row["prefix_hit_frac"]), 1 - computed / (330 * 800), delta=0.01)
        with open(self.place / "out0" / "request_groups.csv", newline="", encoding="utf-8") as file:
            stages = [request["class"] for request in csv.DictReader(file)]
        self.assertEqual(len(stages), int(row["requests"]))
        self.assertEqual(set(stages), {"stage 1", "stage 2", "stage 3"})

    def test_09_a_group_beyond_a_machine(self):
        rows = self.run_rows("e.yaml", cwd=self.inputs("09-tp-beyond-a-machine"))
        eight, sixteen, _ = self.column(rows, "tpot_mean_ms")
        self.assertGreater(sixteen, eight / 1.24)
        self.assertIn("between machines of 8", self.said)

    def test_10_a_policy_that_merges_takes_no_more_time_than_requests(self):
        folder = self.inputs("10-d2o-serving-time")
        seconds, megabytes = {}, {}
        for recipe in ("full", "d2o"):
            policy = f"kv_policy=[{{recipe: {recipe}{', budget_frac: 0.5' if recipe != 'full' else ''}}}]"
            process = subprocess.Popen([PROGRAM, "run", "e.yaml", "--quiet", "--set", policy, "--out", self.place / recipe], cwd=folder)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            seconds[recipe], megabytes[recipe] = usage.ru_utime, usage.ru_maxrss / 1024
        self.assertLess(seconds["d2o"], 20 * (seconds["full"] + 0.05), f"wanted: about 3 times that of full; {seconds}")
        self.assertLess(megabytes["d2o"], 150, "it was 249 MB for 40 requests")

    def test_robust_08_rows_twice(self):
        folder = self.inputs("robust/08-rows-twice")
        for name, options, key in (("bailian", [], "chat_id"), ("dynamo", ["--set", "sort=true"], "request_id")):
            done = self.succeed("trace", "inspect", f"{name}.jsonl", "--set", f"format={name}", *options, cwd=folder)
            self.assertRegex(done.stdout, rf"skipped +1 rows with the {key} of an earlier one dropped")
            rows = len((folder / f"{name}.jsonl").read_text().splitlines())
            self.assertRegex(done.stdout, rf"requests +{rows - 1}\n")


class Models(Field):
    def test_03_a_configuration_in_the_working_folder(self):
        folder = self.inputs("03-config-in-working-folder")
        (row,) = self.run_rows("e.yaml", cwd=folder)
        self.assertEqual(row["completed"], "2")
        self.assertIn("1.236 B", self.succeed("describe", "config.json", cwd=folder).stdout)

    def describe(self, path):
        return self.succeed("describe", path).stdout

    def test_04_keys_that_change_nothing(self):
        folder = self.inputs("04-harmless-config-keys")
        named = self.describe(folder / "qkn" / "config.json")
        config = json.loads((folder / "qkn" / "config.json").read_text())
        del config["use_qk_norm"]
        (folder / "qkn" / "config.json").write_text(json.dumps(config))
        self.assertEqual(named, self.describe(folder / "qkn" / "config.json"))
        self.assertIn("vision or audio parts are not counted", self.describe(folder / "vision" / "config.json"))
        quantized = self.describe(folder / "modelopt_groups" / "config.json")
        self.assertIn("quantized by modelopt", quantized)
        self.assertIn("weights of MLPs: 8 bits, computed in fp8", quantized)
        self.assertRegex(quantized, r"KV bytes per token: \d+ in fp8")

    def test_05_a_dense_model_with_linear_attention(self):
        text = self.describe(self.inputs("05-dense-qwen35") / "config.json")
        self.assertIn("KV bytes per token: 65536 in bfloat16", text)
        billions = float(re.search(r"parameters: ([\d.]+) B", text)[1])
        self.assertAlmostEqual(billions, 27, delta=0.5)

    def test_robust_07_values_that_were_rounded_or_passed_over(self):
        folder = self.inputs("robust/07-silent-rounding-and-ranges")
        interval = self.call("run", "base.yaml", "--set", "timeline_interval_ms=1e-9", "--out", "o", cwd=folder)
        self.assert_refused(interval, "timeline_interval_ms", "below a nanosecond")
        self.assert_refused(self.call("run", "base.yaml", "--set", "hardware=l2.yaml", "--out", "o", cwd=folder), "l2.yaml:12", "'l2_bytes' = 50")
        text = self.describe(folder / "two_dtypes.json")
        self.assertIn("remark: 'dtype' = float32 is taken", text)
        self.assertIn("in float32", text)


class Options(Field):
    def test_07_lines_with_options_that_change_nothing(self):
        lines = (self.inputs("07-flag-lines") / "lines.txt").read_text().splitlines()
        (self.place / "in" / "base.yaml").write_text("""model: qwen3-30b-a3b
hardware: h200
trace: {generate: {requests: 2, arrival: {constant: {rate_per_s: 1}}, prompt_tokens: 100, output_tokens: 5}}
""")
        self.assertGreaterEqual(len(lines), 8)
        for line in lines:
            engine, options = line.split(" ", 1)
            scheduler = {"vllm": "vllm_v1", "sglang": "sglang"}[engine]
            self.succeed("run", "in/base.yaml", "--set", f"scheduler={scheduler}", f"--{engine}-args", options, "--out", "o")

    def test_robust_06_a_seed_beyond_64_bits(self):
        folder = self.inputs("robust/06-seed-1e20")
        for seed in ("99999999999999999999", "-1", "1e20"):
            self.assert_refused(self.call("trace", "inspect", "base.yaml", "--seed", seed, cwd=folder), "--seed")

    def test_robust_09_an_empty_line_of_options(self):
        folder = self.inputs("robust/09-empty-vllm-args")
        with_none = self.run_rows("base.yaml", cwd=folder)
        self.assertEqual(self.run_rows("base.yaml", "--vllm-args", "", cwd=folder), with_none)


class Policies(Field):
    def replay(self, name):
        folder = self.inputs(name)
        return self.call("run", folder / "a.yaml", "--out", self.place / "out", cwd=ROOT)

    def test_kv_01_blocks_over_a_scorer_that_reads_the_output_projection(self):
        done = self.replay("kv/01-blocks-output-aware-segfault")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_kv_02_slices_over_the_oracle(self):
        self.assert_refused(self.replay("kv/02-slices-alone-oracle-segfault"), "a.yaml:4:", "'slices' cannot build on 'oracle'")

    def test_kv_03_chunks_over_a_first_stage_that_overflows(self):
        folder = self.inputs("kv/03-chunks-over-critical")
        scorer = re.search(r"`(scorer: .*?)`\.", (folder / "README.md").read_text(), re.DOTALL)[1].replace("\n", " ")
        (folder / "a.yaml").write_text(
            "name: a\nhost: replay\nsamples: {s: {file: traces/samples/probe_niah.safetensors}}\n"
            f"kv_policy: {{recipe: kvpress_chunkkv, compression_ratio: 0.5, {scorer}}}\n")
        done = self.call("run", folder / "a.yaml", "--out", self.place / "out", cwd=ROOT)
        self.assert_refused(done, "'chunks' cannot build on 'output_aware'", "overflow")

    def test_kv_04_a_window_that_has_no_room_for_an_extra_pass(self):
        self.inputs("kv/04-window-model-replay")
        model, probe = self.place / "mistral", ROOT / "engine" / "probe"
        model.mkdir()
        for name in ("model.safetensors", "tokenizer.json"):
            (model / name).symlink_to(probe / name)
        config = {**json.loads((probe / "config.json").read_text()), "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4000}
        (model / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key not in ("attention_bias", "mlp_bias")}))
        (self.place / "r.yaml").write_text(
            f"name: r\nhost: replay\nsamples: {{s: {{record: {{model: {model}, eval: {probe}/eval/dev.jsonl, task: niah, length_tokens: 2048, decode_tokens: 3}}}}}}\n"
            "kv_policy: [{recipe: knorm, budget_tokens: 80}, {recipe: snapkv, budget_tokens: 80}, {recipe: tova, budget_tokens: 80}]\n")
        self.succeed("run", "r.yaml", "--out", "o")


class Robust(Field):
    def test_01_threads_of_python_and_one_folder(self):
        folder = self.inputs("robust/01-python-two-threads-one-folder")
        python = python_with_package()
        if python is None:
            self.skipTest("no Python has the package kvlab (pip install .)")
        done = subprocess.run([python, "race.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        ok, wrong, errors = re.search(r"ok (\d+) wrong (\d+) (\{.*\})", done.stdout).groups()
        self.assertEqual(int(wrong), 0, done.stdout)
        self.assertGreaterEqual(int(ok), 60)
        for error in re.findall(r"'(\w+: [^']*)': \d+", errors):
            self.assertIn("another kvlab is writing there", error)

    def test_02_histograms_that_no_observations_give(self):
        folder = self.inputs("robust/02-metrics-impossible-histogram")
        self.run_rows(FOLDER / "robust" / "09-empty-vllm-args" / "base.yaml")
        for name, line, series in (("bucket_falls.txt", 6, "time_to_first_token_seconds_bucket"), ("sum_negative.txt", 9, "time_to_first_token_seconds_sum")):
            done = self.call("validate", "--requests", name, "--against", self.place / "out0", cwd=folder)
            self.assert_refused(done, f"{name}:{line}: ", series)
            long = (folder / name).read_text().replace("} 20\n", "} " + "9" * 200000 + "\n")
            (folder / "long.txt").write_text(long)
            self.assert_refused(self.call("validate", "--requests", "long.txt", "--against", self.place / "out0", cwd=folder), "long.txt:")

    def test_03_what_a_killed_program_left_is_removed(self):
        folder = self.inputs("robust/03-temporary-file-of-a-killed-run")
        small = ["run", "kill.yaml", "--set", "trace.generate.requests=20", "--set", "scheduler=vllm_v1", "--set", "seeds=1", "--out", "r", "--quiet"]
        for again in (["clean", "r", "--yes"], small):
            self.succeed(*small, cwd=folder)
            (folder / "r" / ".kvlab.json.new515").write_text("")
            self.succeed(*again, cwd=folder)
            self.assertFalse((folder / "r" / ".kvlab.json.new515").exists(), again)

    def test_04_a_report_on_a_full_disk(self):
        self.inputs("robust/04-report-on-a-full-disk")
        if importlib.util.find_spec("pandas") is None:
            self.skipTest(f"{sys.executable} has no pandas")
        if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
            self.skipTest("no file systems can be mounted here")
        self.run_rows(FOLDER / "robust" / "09-empty-vllm-args" / "base.yaml")
        disk = self.place / "disk"
        disk.mkdir()
        script = f"mount -t tmpfs -o size=40k tmpfs {disk} && {{ {sys.executable} {REPORT} {self.place / 'out0'} --out {disk}/r.html; echo \"status $?\"; ls -A {disk}; }}"
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=120,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertRegex(done.stdout, r"^status [12]\n$", done.stderr)
        self.assertIn(f"{disk}/r.html", done.stderr)

    def test_05_a_limit_of_the_size_of_files(self):
        folder = self.inputs("robust/05-file-size-limit")
        small = [PROGRAM, "run", "kill.yaml", "--jobs", "1", "--quiet", "--set", "scheduler=vllm_v1", "--set", "seeds=1"]
        limited = subprocess.run(["bash", "-c", 'ulimit -f 100; exec "$@"', "_", *small, "--out", "r"], cwd=folder, capture_output=True, text=True, check=False)
        self.assertNotEqual(limited.returncode, -signal.SIGXFSZ)
        self.assertEqual(limited.returncode, 1, limited.stderr)
        self.assertRegex(limited.stderr, r"requests\.csv: cannot be written: File too large")
        for out in ("r", "whole"):
            self.assertEqual(subprocess.run([*small, "--out", out], cwd=folder, check=False).returncode, 0)
        self.assertEqual((folder / "r" / "requests.csv").read_bytes(), (folder / "whole" / "requests.csv").read_bytes())


if __name__ == "__main__":
    unittest.main()
