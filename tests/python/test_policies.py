"""Tests of policies written in Python: python3 tests/python/test_policies.py, with an interpreter that has the package (pip install .).

Twins of built-in policies must give the same bytes."""

import re
import subprocess
import sys
import unittest
from collections import OrderedDict
from pathlib import Path

from policy_case import MISSING, Policies, serving

if not MISSING:
    import numpy as np

    import kvlab

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python-policies.md"

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
