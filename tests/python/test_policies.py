"""Tests of policies written in Python: python3 tests/python/test_policies.py, with an interpreter that has the package (pip install .).

Twins of built-in policies must give the same bytes."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from collections import OrderedDict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python-policies.md"


def import_error():
    """Why the package cannot be imported from a foreign directory; "" where it can be."""
    done = subprocess.run([sys.executable, "-c", "import kvlab"], cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{sys.executable} has no package kvlab (pip install .): {done.stderr.strip().splitlines()[-1]}"


MISSING = import_error()
if not MISSING:
    import numpy as np

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


def line_of(text):
    """Line of this file that has the text, from 1."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line and "line_of(" not in line)


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



if not MISSING:

    @kvlab.order("sjf_twin")
    def sjf_twin(request):
        return request.prompt_tokens

    @kvlab.order("sjf_twin_asked")
    def sjf_twin_asked(request, now):
        return request.prompt_tokens

    @kvlab.order("priority_twin", needs=["priority"])
    class PriorityTwin:
        def key(self, request):
            return request.priority

    @kvlab.order("longest_wait", needs=["predicted_tokens"])
    def longest_wait(request, now):
        return -(now - request.arrival) / request.predicted_tokens

    @kvlab.scheduler("sarathi_twin")
    class SarathiTwin:
        """decodes first, then chunks of prompts, within a budget"""

        def __init__(self, *, budget_tokens=512, max_num_seqs=128, watermark_frac=0.01):
            self.budget_tokens, self.max_num_seqs, self.watermark_frac = budget_tokens, max_num_seqs, watermark_frac

        def plan(self, view, plan):
            def is_decode(r):
                return r.output_tokens > 0 and view.needed_tokens(r) == 1

            for r in view.each_running():
                if is_decode(r) and view.allocate_or_preempt(r, 1):
                    plan.add(r, 1)
            for r in view.each_running():
                m = 0 if is_decode(r) else min(view.needed_tokens(r), self.budget_tokens - plan.tokens)
                if m > 0 and view.allocate_or_preempt(r, m):
                    plan.add(r, m)
            self.admit(view, plan)

        def admit(self, view, plan):
            spare = int(self.watermark_frac * view.num_blocks)
            passed = 0
            while passed < view.num_waiting and view.num_running < self.max_num_seqs:
                r = view.waiting(passed)
                readiness = view.readiness(r)
                if readiness == "later":
                    passed += 1
                    continue
                left = view.needed_tokens(r) if readiness == "ready" else 0
                m = min(left, self.budget_tokens - plan.tokens)
                if m <= 0 or (r.computed_tokens == 0 and view.free_blocks - view.blocks_needed(r, left) < spare):
                    return
                if not view.try_allocate(r, m, left - m):
                    return
                view.admit(r)
                plan.add(r, m)

    @kvlab.block_cache("fifo_twin")
    class FifoTwin:
        def __init__(self):
            self.inserted, self.count = {}, 0

        def on_insert(self, block):
            self.inserted[block] = self.count
            self.count += 1

        def rank(self, block):
            return self.inserted[block]

    @kvlab.block_cache("lru_twin")
    class LruTwin:
        def __init__(self):
            self.released = OrderedDict()

        def on_release(self, block):
            self.released[block] = True

        def on_acquire(self, block):
            del self.released[block]

        def victim(self, incoming):
            return self.released.popitem(last=False)[0]

    @kvlab.dispatcher("round_robin_twin")
    class RoundRobinTwin:
        def __init__(self):
            self.asked = 0

        def route(self, request, replicas):
            self.asked += 1
            return replicas[(self.asked - 1) % len(replicas)]

    @kvlab.dispatcher("least_outstanding_twin")
    def least_outstanding_twin(request, replicas):
        return min(replicas, key=lambda r: r.waiting + r.running).number

    @kvlab.scorer("key_norm_twin", needs=["keys"], cost="key_norm")
    def key_norm_twin(keys, positions):
        assert keys.dtype == np.float32 and positions.dtype == np.int32 and len(keys) == len(positions)
        return -np.linalg.norm(keys, axis=1)

    @kvlab.scorer("recency_twin", protects=(4, 0))
    class RecencyTwin:
        def score(self, positions, layer, head, prompt_tokens, seen_tokens):
            assert positions.max() < seen_tokens
            return positions

    @kvlab.scorer("window_attention_twin", needs=["keys", "queries"], window_queries=16, protects=(0, 16))
    def window_attention_twin(keys, queries, positions):
        logits = np.einsum("qgd,td->qgt", queries.astype(np.float64), keys) / np.sqrt(keys.shape[1])
        first = positions[-1] + 1 - len(queries)
        seen = positions[None, :] <= first + np.arange(len(queries))[:, None]
        weights = np.where(seen[:, None, :], np.exp(logits - logits.max(axis=2, keepdims=True)), 0)
        return (weights / weights.sum(axis=2, keepdims=True)).mean(axis=1).sum(axis=0)


class Twins(Policies):
    def test_orders(self):
        for rate in (20, 60):
            experiment = serving(
                scheduler={"vllm_v1": {"max_num_seqs": 8}},
                order=[{"sjf": {"counts_output": False, "counts_prompt": True}}, "sjf_twin", "sjf_twin_asked"],
            )
            experiment["trace"]["generate"]["arrival"]["poisson"]["rate_per_s"] = rate
            self.assert_twins(self.run_quietly(experiment, out=f"orders{rate}"))

    def test_an_order_can_differ(self):
        results = self.run_quietly(serving(scheduler={"vllm_v1": {"max_num_seqs": 8}}, order=["fcfs", "sjf_twin"]))
        first, second = self.files_of(results, "requests.csv")
        self.assertNotEqual(first, second)

    def test_facts_are_read_and_required(self):
        Path("priorities.csv").write_text("arrival_ns,prompt_tokens,output_tokens,priority\n" + "".join(f"{i * 20_000_000},{200 + i},20,{-(i * 7 % 5)}\n" for i in range(60)))
        experiment = serving(name="facts", scheduler={"vllm_v1": {"max_num_seqs": 4}}, order=["priority", "priority_twin"], trace={"file": "priorities.csv"})
        self.assert_twins(self.run_quietly(experiment))
        with self.assertRaisesRegex(kvlab.InputError, "priority"):
            self.run_quietly(serving(name="facts2", order="priority_twin"))

    def test_schedulers(self):
        results = self.run_quietly(serving(scheduler=["sarathi", "sarathi_twin"]))
        self.assertGreater(results.summary["preemptions"].min(), 10)
        self.assert_twins(results)

    def test_schedulers_with_shared_prefixes(self):
        trace = {"file": kvlab.data_path("traces/samples/mooncake_like.jsonl.gz"), "limit_requests": 40}
        results = self.run_quietly(serving(name="prefixes", scheduler=["sarathi", "sarathi_twin"], memory={"num_blocks": 20000}, max_model_len=131072, trace=trace))
        self.assertGreater(results.summary["prefix_hit_frac"].min(), 0)
        self.assert_twins(results)

    def test_block_caches(self):
        curves = {
            "name": "curves",
            "kind": "block_cache_mrc",
            "block_caches": ["lru", "lru_twin", "fifo", "fifo_twin"],
            "capacity_blocks": [700, 3000],
            "trace": {"file": kvlab.data_path("traces/samples/mooncake_like.jsonl.gz"), "limit_requests": 150},
        }
        rows = self.run_quietly(curves).summary.set_index(["block_cache", "capacity_blocks"]).drop(columns=["run"])
        for name in ("lru", "fifo"):
            self.assertTrue(rows.loc[name].equals(rows.loc[f"{name}_twin"]), rows)
        self.assertFalse(rows.loc["lru"].equals(rows.loc["fifo"]))

    def test_block_caches_in_serving(self):
        trace = {"file": kvlab.data_path("traces/samples/mooncake_like.jsonl.gz"), "limit_requests": 60}
        self.assert_twins(self.run_quietly(serving(name="caches", block_cache=["fifo", "fifo_twin"], memory={"num_blocks": 9000}, max_model_len=131072, trace=trace)))

    def test_dispatchers(self):
        self.assert_twins(self.run_quietly(serving(replicas=3, dispatcher=["round_robin", "round_robin_twin"])))
        self.assert_twins(self.run_quietly(serving(replicas=3, dispatcher=["least_outstanding", "least_outstanding_twin"]), out="least"))

    def test_scorers_keep_the_same_tokens(self):
        pairs = {
            "knorm": ("key_norm", "key_norm_twin"),
            "snapkv": ({"window_attention": {"window_tokens": 16, "pool": "none"}}, "window_attention_twin"),
            "streaming": ("recency", "recency_twin"),
        }
        for recipe, scorers in pairs.items():
            for budget in (48, 96):
                policies = [{"recipe": recipe, "scorer": s, "budget_tokens": budget} for s in scorers]
                experiment = {"name": f"kept_{recipe}", "host": "replay", "output": {"kept": True}, "kv_policy": policies}
                experiment["samples"] = {"probe": {"file": kvlab.data_path("traces/samples/probe_niah.safetensors")}}
                results = self.run_quietly(experiment, out=f"kept_{recipe}{budget}")
                first, second = self.files_of(results, "kept.jsonl")
                self.assertIn('"kept":[', first)
                self.assertEqual(first, second, recipe)

    def test_a_scorer_is_charged_as_it_declares(self):
        policies = [{"recipe": "snapkv", "scorer": s, "budget_tokens": 128} for s in ("key_norm", "key_norm_twin")]
        self.assert_twins(self.run_quietly(serving(kv_policy=policies, memory={"num_blocks": 3000})))


class Determinism(Policies):
    def test_neither_jobs_nor_fast_forward_change_results(self):
        experiment = serving(scheduler=["vllm_v1", "sarathi_twin"], order=["sjf_twin", "longest_wait"], seed=[1, 2])
        found = {}
        for name, options in {"one": {"jobs": 1}, "two": {"jobs": 2}, "steps": {"jobs": 1, "fast_forward": False}}.items():
            results = self.run_quietly(experiment, out=name, **options)
            found[name] = [(results.path / t).read_bytes() for t in ("requests.csv", "timeline.csv")]
        self.assertEqual(len(results.summary), 8)
        self.assertEqual(found["one"], found["two"])
        self.assertEqual(found["one"], found["steps"])


class Identity(Policies):
    MODULE = """\
        import kvlab
        from helper import weight

        @kvlab.order("identified")
        def identified(request, *, slope=1.0):
            return slope * weight(request.prompt_tokens)

        @kvlab.order("other")
        def other(request):
            return 1
        """

    def runs_done(self):
        """The runs that a process of its own does, by its messages."""
        text = "import sys; sys.path.insert(0, '.'); import policies, kvlab._call as c; print(c.call('run', 'x.yaml', '--jobs', '1'))"
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        changed = re.findall(r"(\d+) runs? (?:is|are) done again, since (.*) changed", done.stdout)
        return changed, len(re.findall(r"^run \d+ of", done.stdout, re.MULTILINE))

    def test_a_changed_policy_is_run_anew_and_no_other(self):
        trace = "{generate: {requests: 20, arrival: {poisson: {rate_per_s: 9}}, prompt_tokens: {fixed: {value: 50}}, output_tokens: {fixed: {value: 5}}}}"
        Path("x.yaml").write_text(f"name: x\nmodel: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\norder: [fcfs, identified, other]\ntrace: {trace}\n")
        policies, helper = Path("policies.py"), Path("helper.py")
        policies.write_text(textwrap.dedent(self.MODULE))
        helper.write_text("SCALE = 1\n\ndef weight(tokens):\n    return SCALE * tokens\n")
        self.assertEqual(self.runs_done(), ([], 3))
        self.assertEqual(self.runs_done(), ([], 0))
        policies.write_text("# moved down\n\n" + policies.read_text())
        self.assertEqual(self.runs_done(), ([], 0))
        policies.write_text(policies.read_text().replace("return slope *", "return 2 * slope *"))
        self.assertEqual(self.runs_done(), ([("1", "python:identified")], 1))
        helper.write_text(helper.read_text().replace("SCALE = 1", "SCALE = -1"))  # used by a function that the policy uses
        self.assertEqual(self.runs_done(), ([("1", "python:identified")], 1))
        policies.write_text(policies.read_text().replace("slope=1.0", "slope=0.5"))
        self.assertEqual(self.runs_done(), ([("1", "python:identified")], 1))
        self.assertEqual(self.runs_done(), ([], 0))

    def test_a_policy_without_a_source_file_counts_by_its_byte_code(self):
        def decorate(text):
            exec(text, {"kvlab": kvlab})

        experiment = serving(order="typed")
        decorate("@kvlab.order('typed')\ndef typed(request):\n    return request.prompt_tokens\n")
        first = self.run_quietly(experiment)
        manifest = first.run(first.summary["run"][0]).manifest
        self.assertRegex(manifest["code"]["python:typed"], "^[0-9a-f]{16}$")
        before = self.files_of(first, "requests.csv")
        decorate("@kvlab.order('typed')\ndef typed(request):\n    return -request.prompt_tokens\n")
        second = self.run_quietly(experiment)
        self.assertNotEqual(before, self.files_of(second, "requests.csv"))

    def test_fidelity_in_a_serving_table_follows_the_scorer(self):
        """It is kept from one run of a process to the next."""

        def mass(sign):
            exec(f"@kvlab.scorer('signed', needs=['keys'], cost='key_norm')\ndef signed(keys):\n    return {sign} * (keys * keys).sum(axis=1)\n", {"kvlab": kvlab})
            samples = {"probe": {"file": kvlab.data_path("traces/samples/probe_niah.safetensors")}}
            policy = {"recipe": "knorm", "scorer": "signed", "budget_tokens": 64}
            return self.run_quietly(serving(memory={"num_blocks": 3000}, kv_policy=policy, samples=samples)).summary["attention_mass"][0]

        self.assertNotEqual(mass(-1), mass(1))


class Errors(Policies):
    def assert_fails(self, message, experiment, **options):
        with self.assertRaises(kvlab.InputError) as caught:
            self.run_quietly(experiment, **options)
        self.assertIn(message, str(caught.exception))

    def test_an_exception_names_the_line_of_the_policy(self):
        @kvlab.order("divides")
        def divides(request, now):
            return 1 / (request.number - 3)  # fails

        place = f"{__file__}:{line_of('1 / (request.number - 3)  # fails')}"
        self.assert_fails(f"{place}: order 'divides': ZeroDivisionError: division by zero", serving(order="divides"))

        @kvlab.order("calls_numpy")
        def calls_numpy(request, now):
            return np.array([1, 2]) @ np.array([1, 2, 3])  # in numpy

        self.assert_fails(f"{__file__}:{line_of('np.array([1, 2, 3])  # in numpy')}: order 'calls_numpy': ValueError", serving(order="calls_numpy"))

    def test_the_complete_runs_of_a_sweep_are_kept(self):
        @kvlab.dispatcher("no_replica")
        def no_replica(request, replicas):
            return 7

        with self.assertRaises(kvlab.InputError) as caught:
            self.run_quietly(serving(replicas=2, dispatcher=["round_robin", "no_replica"]))
        self.assertIn("route() returned replica 7, which is none of those", str(caught.exception))
        self.assertEqual(len(caught.exception.results.summary), 1)

    def test_values_that_are_no_keys(self):
        @kvlab.order("returns_none")
        def returns_none(request):
            pass

        @kvlab.order("returns_nan")
        def returns_nan(request):
            return float("nan")

        self.assert_fails("key() must return a number, and returned None", serving(order="returns_none"))
        self.assert_fails("key() returned NaN", serving(order="returns_nan"))

    def test_requests_are_lent(self):
        @kvlab.order("keeps_requests")
        class KeepsRequests:
            def __init__(self):
                self.kept = []

            def key(self, request, now):
                self.kept.append(request)
                return self.kept[0].prompt_tokens

        self.assert_fails("a request is valid only during the call that it was passed to", serving(order="keeps_requests"))

        @kvlab.order("looks_ahead")
        def looks_ahead(request):
            return request.output_tokens

        self.assert_fails("'output_tokens' changes while a request is served", serving(order="looks_ahead"))

    def test_what_a_scorer_may_not_do(self):
        def fails(message, **options):
            def with_function(function):
                kvlab.scorer(function.__name__, needs=["keys"], **options)(function)
                samples = kvlab.data_path("traces/samples/probe_niah.safetensors")
                with self.assertRaises(kvlab.InputError) as caught:
                    kvlab.replay(samples=samples, policies=[{"recipe": "knorm", "scorer": function.__name__}], out=function.__name__, quiet=True)
                self.assertIn(message, str(caught.exception))

            return with_function

        kept = []

        @fails("keeps an array after the call")
        def keeps_a_view(keys):
            kept.append(keys[1:])
            return keys[:, 0]

        @fails("assignment destination is read-only")
        def writes(keys):
            keys[0] = 0
            return keys[:, 0]

        @fails("numbers, one for each token, and returned ndarray of shape (")
        def returns_a_matrix(keys):
            return keys

        @fails("numbers, one for each token, and returned NoneType")
        def returns_nothing(keys):
            pass

        @fails("score() returned NaN for token 2 of the row")
        def scores_nan(keys):
            return np.where(np.arange(len(keys)) == 2, np.nan, 1)

        @fails("cost=\"accumulated_attention\" cannot be charged: it keeps statistics", cost="accumulated_attention")
        def bad_cost(keys):
            return keys[:, 0]

        @fails("cost=\"key_nrom\" is not a scorer; did you mean 'key_norm'", cost="key_nrom")
        def unknown_cost(keys):
            return keys[:, 0]

    def test_a_scorer_without_a_cost_is_refused_in_the_simulator(self):
        policy = {"recipe": "snapkv", "scorer": "recency_twin", "budget_tokens": 128}
        self.assert_fails("a scorer in Python has no measured cost, so it runs in replay alone", serving(kv_policy=policy, memory={"num_blocks": 3000}))

    def test_plans_are_checked(self):
        def fails(message):
            def with_plan(plan):
                kvlab.scheduler(plan.__name__)(type(plan.__name__, (), {"plan": plan}))
                self.assert_fails(f"scheduler '{plan.__name__}': {message}", serving(scheduler=plan.__name__), out=plan.__name__)

            return with_plan

        @fails("ValueError: add: request 0 does not run")
        def adds_waiting(self, view, plan):
            plan.add(view.waiting(0), 1)

        @fails("ValueError: admit: request 0 has no room")
        def admits_without_room(self, view, plan):
            view.admit(view.waiting(0))

        @fails("IndexError: 1 requests wait")
        def waits_too_far(self, view, plan):
            view.waiting(1)

        @fails("ValueError: 100000 tokens of request 0, which needs ")
        def takes_too_many(self, view, plan):
            view.try_allocate(view.waiting(0), 100000)

        @fails("ValueError: add: 1 tokens of request 0, which has room for 0 in this plan")
        def adds_twice(self, view, plan):
            r = view.waiting(0)
            view.try_allocate(r, view.needed_tokens(r))
            view.admit(r)
            plan.add(r, view.needed_tokens(r))
            plan.add(r, 1)

        views = []

        @fails("RuntimeError: the view is valid only during the call")
        def keeps_the_view(self, view, plan):
            views.append(view)
            r = views[0].waiting(0)
            if view.try_allocate(r, view.needed_tokens(r)):
                view.admit(r)
                plan.add(r, view.needed_tokens(r))

    def test_victims_must_be_candidates(self):
        @kvlab.block_cache("gives_0")
        class Gives0:
            def on_acquire(self, block):
                pass

            def on_release(self, block):
                pass

            def victim(self):
                return 0

        trace = {"file": kvlab.data_path("traces/samples/mooncake_like.jsonl.gz"), "limit_requests": 5}
        curves = {"name": "curves", "kind": "block_cache_mrc", "block_caches": "gives_0", "capacity_blocks": 50, "trace": trace}
        self.assert_fails("victim() returned block 0, which is no candidate", curves)

    def test_parameters_have_the_checks_of_yaml(self):
        @kvlab.order("has_parameters")
        def has_parameters(request, *, slope: float, window=kvlab.param(4, min=1, max=9, meaning="requests"), is_on=True, mode="x"):
            self.assertEqual((slope, window, is_on, mode), (0.5, 4, False, "y"))
            return slope * request.prompt_tokens

        self.run_quietly(serving(order={"has_parameters": {"slope": 0.5, "is_on": False, "mode": "y"}}))
        rows = {p["key"]: (p["type"], p["default"], p["meaning"]) for p in kvlab.describe("has_parameters")["parameters"]}
        self.assertEqual(rows["window"], ("integer", "4", "requests"))
        self.assertEqual(rows["slope"][:2], ("real", None))
        for given, message in {
            "{slope: 1, windw: 2}": "unknown key 'windw' in order 'has_parameters'",
            "{slope: 1, window: 10}": "[1, 9]",
            "{slope: x}": "not a number: 'x'",
            "{}": "'slope'",
        }.items():
            Path("x.yaml").write_text(f"name: x\nmodel: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\norder: {{has_parameters: {given}}}\ntrace: {{file: none.csv}}\n")
            with self.assertRaises(kvlab.InputError) as caught:
                self.run_quietly("x.yaml")
            self.assertRegex(str(caught.exception), r"x\.yaml:5:\d+: ")
            self.assertIn(message, str(caught.exception))


class Declarations(Policies):
    def test_mistakes_are_told_when_a_policy_is_declared(self):
        def fails(error, message, decorator):
            def with_target(target):
                with self.assertRaises(error) as caught:
                    decorator(target)
                self.assertIn(message, str(caught.exception))

            return with_target

        @fails(TypeError, "key() cannot take 'reqest'; it takes any of request, now; did you mean 'request'?", kvlab.order("bad"))
        def misspelt(reqest):
            pass

        @fails(TypeError, "on_token() is never called", kvlab.order("bad"))
        class BadEvent:
            def key(self, request):
                pass

            def on_token(self, request):
                pass

        @fails(TypeError, "parameters of YAML are keyword-only: write __init__(self, *, slope)", kvlab.order("bad"))
        class PositionalParameter:
            def __init__(self, slope):
                pass

            def key(self, request):
                pass

        @fails(TypeError, "an order needs key()", kvlab.order("bad"))
        class NoKey:
            pass

        @fails(ValueError, "'fcfs' is the name of a built-in policy", kvlab.order("fcfs"))
        def takes_a_name(request):
            pass

        @fails(ValueError, "'sjf_twin' is an order in Python already", kvlab.dispatcher("sjf_twin"))
        def takes_another_name(request, replicas):
            pass

        @fails(TypeError, "score() takes 'keys', so write needs=['keys']", kvlab.scorer("bad"))
        def undeclared(keys):
            pass

        @fails(TypeError, "a block cache has rank(block) or victim(incoming), and not both", kvlab.block_cache("bad"))
        class Neither:
            pass

        @fails(TypeError, "a scheduler is a class", kvlab.scheduler("bad"))
        def plan(view, plan):
            pass

        with self.assertRaisesRegex(ValueError, "needs: unknown 'prio'"):
            kvlab.order("bad", needs=["prio"])
        self.assertNotIn("bad", set(kvlab.list("orders")["name"]))

    def test_they_are_listed(self):
        self.assertIn("sjf_twin", set(kvlab.list("orders")["name"]))
        self.assertIn("key_norm_twin", set(kvlab.list("kv")["name"]))
        described = kvlab.describe("sarathi_twin")
        self.assertEqual(described["summary"], "decodes first, then chunks of prompts, within a budget")
        self.assertIn("test_policies.py:", described["source"])

        @kvlab.block_cache("listed_later")
        class ListedLater:
            def rank(self, block):
                return block

        self.assertIn("listed_later", set(kvlab.list("block_caches")["name"]))

    def test_none_is_added_while_a_run_is_in_progress(self):
        @kvlab.order("adds_a_policy")
        def adds_a_policy(request):
            kvlab.order("within")(lambda request: 1)

        with self.assertRaisesRegex(kvlab.InputError, "a policy cannot be added while a run is in progress"):
            self.run_quietly(serving(order="adds_a_policy"))


class Page(Policies):
    """The scripts of docs/python-policies.md run as they are printed there."""

    def test_the_scripts_run(self):
        scripts = re.findall(r"^```python (\w+\.py)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        names = [name for name, _ in scripts]
        for kind in ("order", "scorer", "scheduler", "block_cache", "dispatcher"):
            self.assertIn(f"{kind}.py", names)
        for name, text in scripts:
            with self.subTest(name):
                Path(name).write_text(text, encoding="utf-8")
                done = subprocess.run([sys.executable, "-W", "error", name], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                for policy in re.findall(r'^@kvlab\.\w+\("(\w+)"', text, re.MULTILINE):
                    self.assertIn(policy, done.stdout + ("" if policy != "aged_prompt" else "aged_prompt"))


if __name__ == "__main__":
    unittest.main()
