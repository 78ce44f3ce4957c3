"""Tests that policies in Python work in other processes: python3 tests/python/test_policy_transfer.py, with an interpreter that has the package.

The processes begin in an empty folder without this file and without the modules that the policies use."""

import filecmp
import functools
import importlib
import importlib.util
import pickle
import subprocess
import sys
import textwrap
import threading
import unittest
import unittest.mock
from pathlib import Path

from policy_case import MISSING, Policies, serving

if not MISSING:
    import numpy as np

    import kvlab
    from kvlab import policies
    from kvlab._call import call

NO_CLOUDPICKLE = "" if importlib.util.find_spec("cloudpickle") else "no package cloudpickle"
NO_RAY = "" if importlib.util.find_spec("ray") else "no package ray"
TABLES = ["summary.csv", "requests.csv", "timeline.csv"]
HELPER = "import math\nSCALE = 3\n\ndef weight(tokens):\n    return SCALE * math.sqrt(tokens)\n"
WEIGHTS = [0.5, 2.0]


@functools.lru_cache(maxsize=None)
def cached(tokens):
    return tokens // 7


class Base:
    def __init__(self, *, slope=2.0):
        self.slope = slope


def declare(helper, sign):
    """Policies of all kinds, with what is hard to send: a module, a cache, a closure, a base class, super()."""

    @kvlab.order("sent_order")
    def sent_order(request, now, *, least=kvlab.param(10, min=0, meaning="tokens")):
        return sign * helper.weight(max(least, cached(request.prompt_tokens)))

    @kvlab.scorer("sent_scorer", needs=["keys"], cost="key_norm")
    def sent_scorer(keys):
        return sign * np.linalg.norm(keys, axis=1) * WEIGHTS[0]

    @kvlab.dispatcher("sent_dispatcher")
    class SentDispatcher(Base):
        def __init__(self, *, slope=1.5):
            super().__init__(slope=slope)

        def route(self, request, replicas):
            return min(replicas, key=lambda r: self.slope * r.waiting + r.running + helper.SCALE * r.used_blocks)

    @kvlab.block_cache("sent_cache")
    class SentCache:
        def rank(self, block):
            return block

    @kvlab.scheduler("sent_scheduler")
    class SentScheduler:
        def plan(self, view, plan):
            for request in view.each_running():
                tokens = view.needed_tokens(request)
                if tokens > 0 and view.allocate_or_preempt(request, tokens):
                    plan.add(request, tokens)
            if view.num_waiting and view.readiness(view.waiting(0)) == "ready":
                request = view.waiting(0)
                tokens = view.needed_tokens(request)
                if view.try_allocate(request, tokens):
                    view.admit(request)
                    plan.add(request, tokens)


EXPERIMENT = serving(
    replicas=2,
    order=["fcfs", {"sent_order": {"least": [10, 40]}}],
    dispatcher="sent_dispatcher",
    scheduler=["sarathi", "sent_scheduler"],
    block_cache="sent_cache",
    kv_policy=[{"recipe": "full"}, {"recipe": "knorm", "scorer": "sent_scorer", "budget_tokens": 256}],
    memory={"num_blocks": 3000},
)
EXPERIMENT["trace"]["generate"]["requests"] = 40


class Transfer(Policies):
    def setUp(self):
        super().setUp()
        known = dict(policies.declared)
        self.addCleanup(lambda: (policies.declared.clear(), policies.declared.update(known)))
        Path("helper_of_transfer.py").write_text(HELPER)
        sys.path.insert(0, str(self.place))
        self.addCleanup(sys.path.remove, str(self.place))
        self.addCleanup(sys.modules.pop, "helper_of_transfer", None)
        import helper_of_transfer

        self.helper = helper_of_transfer

    def times(self, results):
        return {run: (results.path / "runs" / run / "manifest.json").stat().st_mtime_ns for run in results.runs}

    def assert_same_results(self, a, b):
        self.assertEqual(filecmp.cmpfiles(a, b, TABLES, shallow=False), (TABLES, [], []))

    def elsewhere(self, sent, program):
        """Runs a program in a process that has an empty folder and `sent`."""
        folder = self.place / "elsewhere"
        folder.mkdir()
        (folder / "sent").write_bytes(sent)
        text = "import pickle, sys, kvlab, kvlab.policy_transfer as t\nt.unpack(pickle.loads(open('sent', 'rb').read()))\n" + textwrap.dedent(program)
        return subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False)


class Shards(Transfer):
    def test_merging_takes_the_runs_that_shards_did_again_after_an_edit(self):
        for sign in (-1, 1):
            declare(self.helper, sign)
            for shard in ("1/2", "2/2"):
                self.run_quietly(EXPERIMENT, out="parts", shard=shard)
            call("merge", "parts")
            self.assert_same_results(self.run_quietly(EXPERIMENT, out=f"whole{sign}").path, "parts")


@unittest.skipIf(NO_CLOUDPICKLE, NO_CLOUDPICKLE)
class Processes(Transfer):
    def sent(self):
        from kvlab.policy_transfer import packed

        return pickle.dumps(packed())

    def test_another_process_gives_the_same_results_and_identity(self):
        declare(self.helper, -1)
        done = self.elsewhere(self.sent(), f"kvlab.run({EXPERIMENT!r}, quiet=True, out={str(self.place / 'there')!r})")
        self.assertEqual(done.returncode, 0, done.stderr)
        before = self.times(kvlab.load("there"))
        self.assertEqual(len(before), 12)
        again = self.run_quietly(EXPERIMENT, out="there")
        self.assertEqual(self.times(again), before)  # same identity: nothing is done again
        here = self.run_quietly(EXPERIMENT, out="here")
        self.assert_same_results(here.path, again.path)
        declare(self.helper, 1)  # edited
        self.assertNotEqual(self.times(self.run_quietly(EXPERIMENT, out="there")), before)

    def test_a_policy_that_cannot_be_sent_is_named_where_it_is_used(self):
        lock = threading.Lock()

        @kvlab.order("has_a_lock")
        def has_a_lock(request):
            with lock:
                return request.prompt_tokens

        declare(self.helper, 1)
        program = f"""
            kvlab.run({serving(order='sent_order')!r}, quiet=True)
            kvlab.run({serving(order='has_a_lock')!r}, quiet=True)
            """
        done = self.elsewhere(self.sent(), program)
        self.assertEqual(done.returncode, 1)
        last = done.stderr.strip().splitlines()[-1]
        self.assertIn("order 'has_a_lock': NotSent: it cannot be sent to another process: TypeError: cannot pickle '_thread.lock' object", last)
        self.assertTrue((self.place / "elsewhere" / "results" / "serving").is_dir())

    def test_modules_that_import_each_other(self):
        folder = self.place / "cyclic_package"
        folder.mkdir()
        (folder / "__init__.py").write_text("from cyclic_package import part\nSCALE = -2\n")
        (folder / "part.py").write_text("import cyclic_package\n\ndef weight(tokens):\n    return cyclic_package.SCALE * tokens\n")
        for name in ("cyclic_package", "cyclic_package.part"):
            self.addCleanup(sys.modules.pop, name, None)
        package = importlib.import_module("cyclic_package")

        @kvlab.order("cyclic")
        def cyclic(request):
            return package.part.weight(request.prompt_tokens)

        experiment = serving(order="cyclic")
        done = self.elsewhere(self.sent(), f"kvlab.run({experiment!r}, quiet=True, out={str(self.place / 'there')!r})")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_same_results(self.run_quietly(experiment, out="here").path, "there")

    def test_a_module_that_cannot_be_sent_is_named(self):
        Path("module_with_lock.py").write_text("import threading\nLOCK = threading.Lock()\n\ndef guarded():\n    return LOCK\n\ndef weight(n):\n    return n\n")
        self.addCleanup(sys.modules.pop, "module_with_lock", None)
        importlib.invalidate_caches()
        module = importlib.import_module("module_with_lock")

        @kvlab.order("through_a_module")
        def through_a_module(request):
            return module.weight(request.prompt_tokens)

        from kvlab.policy_transfer import packed

        (sent,) = (policy for policy in packed() if policy.facts["name"] == "through_a_module")
        expected = "module 'module_with_lock', which is sent with all its contents, has 'LOCK': TypeError: cannot pickle '_thread.lock' object"
        self.assertEqual(sent.refusal, f"it cannot be sent to another process: {expected}")

    def test_a_policy_that_cannot_be_loaded_is_named(self):
        from kvlab.policy_transfer import Sent

        @kvlab.order("loads_badly")
        def loads_badly(request):
            return 1

        facts = policies.declared["loads_badly"].facts
        done = self.elsewhere(pickle.dumps([Sent(facts, "text", b"cno_such_module\nname\n.")]), f"kvlab.run({serving(order='loads_badly')!r}, quiet=True)")
        self.assertIn("order 'loads_badly': NotSent: it cannot be loaded in this process: ModuleNotFoundError: No module named 'no_such_module'", done.stderr)

    def test_what_is_known_already_stays(self):
        from kvlab.policy_transfer import packed, unpack

        declare(self.helper, 1)
        before = dict(policies.declared)
        unpack(packed())
        self.assertEqual(policies.declared, before)

    def test_a_change_of_state_alone_comes_through(self):
        """As in a worker that is used again: the text has the class of TABLE, and not its content."""
        from kvlab.policy_transfer import packed, unpack

        class Table:
            def __init__(self):
                self.k = 1

        table = Table()

        @kvlab.order("of_a_table")
        def of_a_table(request):
            return table.k * request.prompt_tokens

        sent = []
        for table.k in (1, -1):
            sent.append(next(policy for policy in packed() if policy.facts["name"] == "of_a_table"))
        self.assertEqual(sent[0].text, sent[1].text)
        self.assertNotEqual(sent[0].code, sent[1].code)
        del policies.declared["of_a_table"]  # a worker has not decorated it
        request = unittest.mock.Mock(prompt_tokens=5)
        for policy, key in zip((*sent, sent[1], sent[0]), (5, -5, -5, 5)):
            unpack([policy])
            self.assertEqual(policies.declared["of_a_table"].target(request), key)
        loaded = policies.declared["of_a_table"]
        unpack([sent[0]])
        self.assertIs(policies.declared["of_a_table"], loaded)  # the same bytes: nothing to do


class RaysTask:
    """Runs in this process; its error is pickled, as on the way from a worker, and the cause of Ray's own."""

    def __init__(self, function):
        self.function = function

    def remote(self, *arguments):
        try:
            return self.function(*arguments)
        except kvlab.InputError as error:
            failed = kvlab.InputError("a text with Ray's traceback")
            failed.cause = pickle.loads(pickle.dumps(error))
            return failed

    @staticmethod
    def get(tasks):
        for each in tasks:
            if isinstance(each, Exception):
                raise each
        return tasks


class WithoutRay(Transfer):
    def test_the_traceback_in_a_policy_comes_back_from_a_task(self):
        @kvlab.order("fails_in_a_task")
        def fails_in_a_task(request):
            raise ValueError("in a task")  # of the policy

        ray = unittest.mock.Mock(remote=RaysTask, get=RaysTask.get)
        with unittest.mock.patch.dict(sys.modules, ray=ray), unittest.mock.patch("kvlab.ray_sweep.packed", list):
            with self.assertRaisesRegex(kvlab.InputError, "order 'fails_in_a_task': ValueError: in a task") as caught:
                kvlab.sweep(serving(order="fails_in_a_task"), {"seed": [1]}, ray=True, shards=1)
        self.assertIn('raise ValueError("in a task")  # of the policy', str(caught.exception.__cause__))


@unittest.skipIf(NO_RAY, NO_RAY)
class Ray(Transfer):
    def test_workers_of_ray_know_the_policies_of_the_driver(self):
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        self.addCleanup(ray.shutdown)
        declare(self.helper, -1)
        whole = self.run_quietly(EXPERIMENT, out="whole")
        shared = kvlab.sweep(EXPERIMENT, {"seed": [1]}, ray=True, out="shared", shards=2)
        self.assert_same_results(whole.path, shared.path)
        before = self.times(shared)
        self.assertEqual(self.times(self.run_quietly(EXPERIMENT, set={"seed": [1]}, out="shared")), before)
        declare(self.helper, 1)  # workers know the edited one
        edited = kvlab.sweep(EXPERIMENT, {"seed": [1]}, ray=True, out="shared", shards=2)
        self.assertNotEqual(self.times(edited), before)
        self.assert_same_results(self.run_quietly(EXPERIMENT, out="edited").path, edited.path)
        self.assert_takes_a_change_of_state()
        self.assert_names_what_cannot_be_sent()

    def assert_takes_a_change_of_state(self):
        """In workers that are used again."""
        table = type("Table", (), {})()

        @kvlab.order("of_a_table")
        def of_a_table(request):
            return table.k * request.prompt_tokens

        experiment = serving(order="of_a_table", scheduler={"sarathi": {"max_num_seqs": 2}})
        found = []
        for table.k in (1, -1):
            shared = kvlab.sweep(experiment, {"seed": [1]}, ray=True, out=f"shared{table.k}", shards=1)
            self.assert_same_results(self.run_quietly(experiment, set={"seed": [1]}, out=f"whole{table.k}").path, shared.path)
            found.append(shared.summary["ttft_mean_ms"][0])
        self.assertNotEqual(*found)

    def assert_names_what_cannot_be_sent(self):
        lock = threading.Lock()

        @kvlab.order("locked")
        def locked(request):
            with lock:
                return request.prompt_tokens

        with self.assertRaisesRegex(kvlab.InputError, "order 'locked': NotSent: it cannot be sent to another process") as caught:
            kvlab.sweep(serving(order="locked"), {"seed": [1]}, ray=True, out="locked", shards=1)
        self.assertIn("raise NotSent(refusal)", str(caught.exception.__cause__))


if __name__ == "__main__":
    unittest.main()
