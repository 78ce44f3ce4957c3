"""Files that `kvlab export` writes, read by the tools' own code, and GuideLLM's own rows read by `kvlab validate`. Each test is skipped with
the reason where its package is not installed: aiperf, guidellm, mlflow (or mlflow-skinny), prometheus_client."""

import importlib
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build/release/kvlab"))
EXPERIMENT = """
name: small
model: llama-3.1-8b
hardware: h100
trace: {generate: {requests: 60, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: {fixed: {value: 300}},
                   output_tokens: {uniform: {min: 2, max: 80}}}}
memory: {num_blocks: 600}
max_model_len: 2048
timeline_interval_ms: 500
scheduler: vllm_v1
"""


def needs(test, *modules):
    try:
        return [importlib.import_module(name) for name in modules]
    except ImportError as error:
        test.skipTest(f"{error}: pip install {modules[0].split('.')[0]}")


class Exchange(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not PROGRAM.exists():
            raise unittest.SkipTest(f"{PROGRAM} is not built: ./kvlab build")
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = Path(cls.folder.name)
        (cls.work / "small.yaml").write_text(EXPERIMENT)
        cls.kvlab("run", "small.yaml", "--out", "out", "--quiet")
        with open(cls.work / "out/summary.csv") as file:
            names, values = (line.strip().split(",") for line in list(file)[:2])
        cls.summary = dict(zip(names, values))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def kvlab(cls, *words):
        environment = {**os.environ, "KVLAB_PROFILES": str(ROOT / "profiles")}
        done = subprocess.run([str(PROGRAM), *words], cwd=cls.work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def value(self, column):
        return float(self.summary[column])

    def test_aiperf_reads_our_files(self):
        export, records = needs(self, "aiperf.common.models.export_models", "aiperf.common.models.record_models")
        self.kvlab("export", "out", "--format", "aiperf", "--out", "aiperf")
        report = export.JsonExportData.model_validate_json((self.work / "aiperf/profile_export_aiperf.json").read_text())
        self.assertEqual(report.schema_version, export.JsonExportData.SCHEMA_VERSION)
        self.assertAlmostEqual(report.time_to_first_token.avg, self.value("ttft_mean_ms"), places=4)
        self.assertAlmostEqual(report.request_latency.p99, self.value("e2e_p99_ms"), places=4)
        rows = [records.MetricRecordInfo.model_validate_json(line) for line in (self.work / "aiperf/profile_export.jsonl").read_text().splitlines()]
        self.assertEqual(len(rows), 60)
        mean = sum(row.metrics["time_to_first_token"].value for row in rows) / len(rows)
        self.assertAlmostEqual(mean, self.value("ttft_mean_ms"), places=4)
        self.assertTrue(all(row.error is None and row.metadata.request_end_ns > row.metadata.request_start_ns for row in rows))

    def test_mlflow_reads_our_store(self):
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # from mlflow 3.16 on, its file store is read with this variable alone
        (store,) = needs(self, "mlflow.store.tracking.file_store")
        self.kvlab("export", "out", "--format", "mlflow", "--out", "mlruns")
        tracking = store.FileStore(str(self.work / "mlruns"))
        (experiment,) = [e for e in tracking.search_experiments() if e.name == "small"]
        (run,) = tracking.search_runs([experiment.experiment_id], "metrics.ttft_mean_ms > 0", 1)
        self.assertEqual(run.info.status, "FINISHED")
        self.assertEqual(run.data.params["model"], "llama-3.1-8b")
        self.assertAlmostEqual(run.data.metrics["ttft_mean_ms"], self.value("ttft_mean_ms"), places=6)
        self.assertEqual(run.data.tags["kvlab.run"], self.summary["run"])

    def test_prometheus_reads_our_metrics(self):
        (parser,) = needs(self, "prometheus_client.openmetrics.parser")
        self.kvlab("export", "out", "--format", "openmetrics", "--out", "metrics")
        lines = (self.work / "metrics/metrics.txt").read_text().splitlines()
        # Version 0.26 takes the second point of a histogram for a repetition of the first, so points are parsed one by one.
        histograms = [line for line in lines if any(part in line.split("{")[0] for part in ("_bucket", "_count", "_sum"))]
        heads = [line for line in lines if line.startswith("# TYPE") and line.endswith(" histogram")]
        others = [line for line in lines if line not in set(histograms) and line not in set(heads)]
        families = {f.name: f for f in parser.text_string_to_metric_families("\n".join(others) + "\n")}
        self.assertEqual(families["vllm:num_requests_running"].type, "gauge")
        self.assertEqual(families["vllm:prefix_cache_queries"].samples[-1].value, 60 * 300)
        instants = list(dict.fromkeys(line.split()[-1] for line in histograms))
        self.assertGreater(len(instants), 5)
        before = -1
        for instant in instants:
            text = []
            for head in heads:
                name = head.split()[2]
                text += [head, *(line for line in histograms if line.startswith(name) and line.split()[-1] == instant)]
            parsed = {f.name: f for f in parser.text_string_to_metric_families("\n".join(text) + "\n# EOF\n")}
            count = {s.name: s.value for s in parsed["vllm:time_to_first_token_seconds"].samples}["vllm:time_to_first_token_seconds_count"]
            self.assertGreaterEqual(count, before)
            before = count
        self.assertEqual(before, 60)

    def test_guidellm_rows_are_read(self):
        (stats,) = needs(self, "guidellm.schemas.base.request_stats")
        from guidellm.schemas.base.info import RequestInfo, RequestTimings
        from guidellm.schemas.base.request import UsageMetrics

        rows = []
        with open(self.work / "out/requests.csv") as file:
            names = file.readline().strip().split(",")
            for line in file:
                row = dict(zip(names, line.strip().split(",")))
                at = {key: 1.7e9 + int(row[f"{key}_ns"]) * 1e-9 for key in ("arrival", "first_token", "last_token")}
                times = RequestTimings(request_start=at["arrival"], first_token_iteration=at["first_token"], last_token_iteration=at["last_token"],
                                       request_end=at["last_token"] + 0.001, resolve_end=at["last_token"] + 0.001,
                                       token_iterations=int(row["output_tokens"]))
                request = stats.GenerativeRequestStats(
                    request_id=row["request"], info=RequestInfo(request_id=row["request"], status="completed", timings=times),
                    input_metrics=UsageMetrics(text_tokens=int(row["prompt_tokens"])),
                    output_metrics=UsageMetrics(text_tokens=int(row["output_tokens"])))
                rows.append(request.model_dump(mode="json"))
        report = {"metadata": {"version": 2}, "benchmarks": [{"requests": {"successful": rows, "errored": [], "incomplete": []}, "metrics": {}}]}
        (self.work / "benchmarks.json").write_text(json.dumps(report))
        self.kvlab("validate", "--requests", "benchmarks.json", "--against", "out", "--quiet")
        with open(self.work / "out/validation.csv") as file:
            names = file.readline().strip().split(",")
            differences = [float(dict(zip(names, line.strip().split(",")))["diff_frac"]) for line in file]
        self.assertGreaterEqual(len(differences), 15)
        self.assertLess(max(map(abs, differences)), 1e-3)


if __name__ == "__main__":
    unittest.main()
