"""Tests of the package in rough hands: python3 tests/python/test_rough_use.py, with an interpreter that has the package."""

import contextlib
import copy
import enum
import gc
import pickle
import subprocess
import sys
import threading
import traceback
import unittest
from pathlib import Path
from unittest import mock

from policy_case import MISSING, Policies, serving

if not MISSING:
    import numpy as np

    import kvlab
    from kvlab import experiments


def small(**changes):
    """A run of some milliseconds."""
    experiment = serving(**changes)
    experiment["trace"]["generate"]["requests"] = 30
    return experiment


def resident_mib():
    """Memory of this process."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Scheduler:
    """First come, first served."""

    def plan(self, view, plan):
        for request in view.each_running():
            tokens = view.needed_tokens(request)
            if tokens > 0 and view.allocate_or_preempt(request, tokens):
                plan.add(request, tokens)
        while view.num_waiting and view.readiness(view.waiting(0)) == "ready":
            request = view.waiting(0)
            tokens = view.needed_tokens(request)
            if not view.try_allocate(request, tokens):
                return
            view.admit(request)
            plan.add(request, tokens)


ONE_CALL = """
import sys, kvlab
experiment = {"name": "race", "model": "llama-3.1-8b", "hardware": "l40s", "scheduler": "vllm_v1", "trace": {"generate": {
    "requests": int(sys.argv[1]), "arrival": {"poisson": {"rate_per_s": 6}}, "prompt_tokens": 100, "output_tokens": 5}}}
try:
    print(kvlab.run(experiment, out="same", quiet=True, jobs=1, force=True).summary.requests.iloc[0])
except kvlab.InputError as error:
    print(error)
"""


class OneFolder(Policies):
    """Calls that write to the same folder at the same time."""

    def one_call(self, requests, found):
        experiment = small(name="race")
        experiment["trace"]["generate"]["requests"] = requests
        try:
            found.append((requests, int(kvlab.run(experiment, out="same", quiet=True, jobs=1, force=True).summary.requests.iloc[0])))
        except kvlab.InputError as error:
            found.append((requests, str(error)))

    def check(self, found):
        own = [asked for asked, got in found if got == asked]
        self.assertTrue(own)
        for asked, got in found:
            if got != asked:
                self.assertRegex(str(got), "another kvlab is writing there|another sweep was run there since")

    def test_threads_get_their_own_results_or_are_refused(self):
        found = []
        for _ in range(10):
            threads = [threading.Thread(target=self.one_call, args=(n, found)) for n in (11, 22, 33, 44)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(found), 40)
        self.check(found)
        self.assertEqual([p.name for p in Path(".").iterdir() if ".new" in p.name], [])

    def test_so_do_processes(self):
        calls = [(n, subprocess.Popen([sys.executable, "-c", ONE_CALL, str(n)], stdout=subprocess.PIPE, text=True)) for n in (11, 22, 33, 44)]
        texts = [(n, call.communicate()[0].strip()) for n, call in calls]
        self.check([(n, int(text) if text.isdigit() else text) for n, text in texts])

    def test_a_table_of_a_later_sweep_is_refused(self):
        first = kvlab.run(small(name="race"), out="same", quiet=True)
        self.assertEqual(first.summary.requests.iloc[0], 30)
        second = kvlab.run(small(name="race", scheduler="orca"), out="same", quiet=True)
        self.assertEqual(first.summary.requests.iloc[0], 30)
        with self.assertRaisesRegex(kvlab.InputError, "another sweep was run there since: kvlab.load"):
            first.requests
        self.assertEqual(len(second.requests), 30)

    def test_an_experiment_with_an_error_has_its_file(self):
        with self.assertRaisesRegex(kvlab.InputError, "results/race.yaml:"):
            kvlab.run(small(name="race", no_such_key=1), quiet=True)
        self.assertIn("no_such_key", Path("results/race.yaml").read_text())

    def test_limits_that_are_not_met_are_warnings(self):
        with self.assertWarnsRegex(RuntimeWarning, "ttft_p99_ms .* > 0.001"):
            results = kvlab.run(small(name="gate", expect={"ttft_p99_ms": {"max": 0.001}}), quiet=True)
        self.assertEqual(list(results.table("expectations").met), [False])


class Exceptions(Policies):
    def test_the_traceback_is_the_cause_and_the_next_run_works(self):
        is_broken = [True]

        def deep(request):
            if is_broken[0] and request.number == 20:
                raise ValueError("first line\nsecond line")  # deep
            return request.prompt_tokens

        @kvlab.order("flaky")
        def flaky(request, now):
            return deep(request)

        with self.assertRaisesRegex(kvlab.InputError, "order 'flaky': ValueError: first line") as caught:
            self.run_quietly(small(order="flaky"))
        shown = "".join(traceback.format_exception(type(caught.exception), caught.exception, caught.exception.__traceback__))
        for text in ("return deep(request)", "# deep", "ValueError: first line\nsecond line", "direct cause of the following exception"):
            self.assertIn(text, shown)
        with self.assertRaises(kvlab.InputError) as again:  # of another error in between
            self.run_quietly(small(order="no_such_order"))
        self.assertIsNone(again.exception.__cause__)
        is_broken[0] = False
        self.assertEqual(len(self.run_quietly(small(order="flaky")).summary), 1)

    def test_an_exception_while_it_is_made_has_a_traceback_too(self):
        @kvlab.order("fails_at_once")
        class FailsAtOnce:
            def __init__(self):
                self.table = {}["missing"]

            def key(self, request):
                return 1

        with self.assertRaisesRegex(kvlab.InputError, "order 'fails_at_once': KeyError: 'missing'") as caught:
            self.run_quietly(small(order="fails_at_once"))
        self.assertIn('self.table = {}["missing"]', str(caught.exception.__cause__))

    def test_the_cause_is_that_of_the_run_in_the_message(self):
        @kvlab.order("bad")
        def bad(request, now, *, at=0):
            if request.number == at:
                raise ValueError(f"bad request {at}")
            return now

        for numbers in ((12, 1), (1, 12)):
            with self.assertRaisesRegex(kvlab.InputError, f"ValueError: bad request {numbers[0]} .and 1 more") as caught:
                self.run_quietly(small(order=[{"bad": {"at": n}} for n in numbers]), jobs=1, force=True)
            self.assertEqual(str(caught.exception.__cause__).splitlines()[-1], f"ValueError: bad request {numbers[0]}")

    def test_a_run_of_another_thread_does_not_take_the_cause_away(self):
        @kvlab.order("fails_in_a_thread")
        def fails_in_a_thread(request):
            raise ValueError("in a thread")

        raise_failure = experiments._raise_failure

        def after_another_run(*arguments):
            thread = threading.Thread(target=self.run_quietly, args=(small(name="other"),))
            thread.start()
            thread.join()
            raise_failure(*arguments)

        with mock.patch.object(experiments, "_raise_failure", after_another_run), self.assertRaises(kvlab.InputError) as caught:
            self.run_quietly(small(order="fails_in_a_thread"))
        self.assertTrue(Path("results/other").is_dir())
        self.assertIn('raise ValueError("in a thread")', str(caught.exception.__cause__))

    def test_long_values_are_cut_in_messages(self):
        @kvlab.order("returns_a_list")
        def returns_a_list(request):
            return list(range(1000))

        with self.assertRaisesRegex(kvlab.InputError, r"must return a number, and returned \[0, 1, 2.*\.\.\.$") as caught:
            self.run_quietly(small(order="returns_a_list"))
        self.assertLess(len(str(caught.exception)), 400)


def use(lent, name, request):
    """Reads a property of an object that a policy was lent, or calls a method of it. request: of the arguments."""
    member = getattr(lent, name)
    if isinstance(getattr(type(lent), name), property):
        return member
    without_request = {"waiting": (0,), "running": (), "each_running": ()}
    tokens = dict.fromkeys(("try_allocate", "allocate_or_preempt", "add", "blocks_for", "blocks_needed"), (1,))
    after_request = {"precedes": (request,), "reject": ("a reason",), **tokens}
    used = member(*without_request[name]) if name in without_request else member(request, *after_request.get(name, ()))
    return list(used) if name == "each_running" else used  # its error comes with the first request


def public_names(lent):
    return [name for name in dir(lent) if not name.startswith("_")]


class LentObjects(Policies):
    def test_nothing_can_be_read_after_the_call(self):
        kept, used = [], set()
        acts = {"admit", "preempt", "reject", "try_allocate", "allocate_or_preempt", "add"}

        @kvlab.scheduler("keeps_all", needs=["predicted_tokens"])
        class KeepsAll(Scheduler):
            def plan(self, view, plan):
                request = view.waiting(0) if view.num_waiting else None
                for lent in (view, plan, request) if request and not used else ():
                    for name in set(public_names(lent)) - acts:
                        with contextlib.suppress(AttributeError):  # request.predicted_tokens is for orders
                            use(lent, name, request)  # works meanwhile
                        used.add((type(lent).__name__, name))
                if len(kept) < 50:
                    kept.extend([view, plan, view.each_running(), *view.running(), *(view.waiting(i) for i in range(view.num_waiting))])
                super().plan(view, plan)

        self.run_quietly(small(scheduler="keeps_all"))
        self.assertGreater(len(kept), 49)
        request = next(each for each in kept if type(each).__name__ == "Request")
        for each in kept:
            for name in public_names(each):
                self.assertTrue(name in acts or (type(each).__name__, name) in used, name)
                with self.assertRaisesRegex(RuntimeError, "(the view|a request) is valid only during the call", msg=name):
                    use(each, name, request)
            if type(each).__name__ == "RunningWalk":
                with self.assertRaisesRegex(RuntimeError, "the view is valid only during the call"):
                    list(each)

    def test_a_request_of_another_object_is_refused_by_a_view(self):
        views, told = [], set()

        @kvlab.order("asks_a_view")
        def asks_a_view(request, now):
            try:
                views and views[0].lookup(request)
            except (RuntimeError, ValueError) as error:
                told.add(str(error))
            return request.number

        @kvlab.scheduler("compares")
        class Compares(Scheduler):
            def plan(self, view, plan):
                views[:] = [view]
                running = view.running()
                if len(running) > 1:
                    view.precedes(running[0], running[1])  # asks for keys during plan()
                super().plan(view, plan)

        self.run_quietly(small(order="asks_a_view", scheduler="compares"))
        self.assertIn("the request is not of this view: take it from view.waiting(), running() or each_running()", told)


class Arguments(Policies):
    def test_values_of_numpy_enums_and_paths(self):
        class Name(str, enum.Enum):
            SARATHI = "sarathi"

        class Blocks(enum.IntEnum):
            FEW = 200

        settings = {"scheduler": np.array(["orca"]), "memory.num_blocks": Blocks.FEW, "seed": np.int64(3), "trace.generate.requests": np.uint16(20)}
        rate = "trace.generate.arrival.poisson.rate_per_s"
        results = self.run_quietly(small(scheduler="vllm_v1"), set={**settings, rate: np.float32(2.5)}, out=Path("a folder") / "of mine")
        self.assertEqual((results.resolved["seed"], len(results.requests), results.path), (3, 20, Path("a folder/of mine")))
        results = self.run_quietly(small(scheduler=Name.SARATHI))
        self.assertEqual(results.resolved["scheduler"], "sarathi")

    def test_mistakes_in_arguments_are_told(self):
        for error, message, call in (
            (TypeError, "and not a NoneType", lambda: kvlab.run(None)),
            (kvlab.InputError, "yaml.safe_load", lambda: kvlab.run("name: x\nmodel: llama-3.1-8b\n")),
            (TypeError, r"set= is a mapping, such as \{'seeds': 3\}, and not a list", lambda: kvlab.run(small(), set=["seeds=3"])),
            (kvlab.InputError, "jobs=-1: at least 1", lambda: kvlab.run(small(), jobs=-1)),
            (TypeError, "float", lambda: kvlab.run(small(), jobs=2.0)),
        ):
            with self.assertRaisesRegex(error, message):
                call()
        self.assertFalse(Path("results/serving").exists())


class ManyRuns(Policies):
    def test_threads_run_at_once(self):
        @kvlab.order("in_threads")
        def in_threads(request, now):
            return -request.prompt_tokens

        found, expected = {}, self.run_quietly(small(order="in_threads", seeds=3)).summary["ttft_mean_ms"].tolist()

        def work(i):
            found[i] = kvlab.run(small(order="in_threads", seeds=3, name=f"thread{i}"), quiet=True).summary["ttft_mean_ms"].tolist()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, {i: expected for i in range(3)})

    @unittest.skipUnless(Path("/proc/self/status").exists(), "no /proc")
    def test_memory_does_not_grow_with_runs(self):
        def run_some(count, first):
            for i in range(first, first + count):
                rejects = f"""
                    @kvlab.scheduler("rejects")
                    class Rejects:
                        def __init__(self):
                            self.own = np.ones(100_000)  # 0.8 MB
                        def plan(self, view, plan):
                            while view.num_waiting:
                                view.reject(view.waiting(0), f"{{view.now}} {i} " + "x" * 5_000)
                    """
                exec("\n".join(line[20:] for line in rejects.splitlines()), {"kvlab": kvlab, "np": np})
                self.run_quietly(small(scheduler="rejects"), force=True)
            gc.collect()

        run_some(20, 0)
        before = resident_mib()
        run_some(100, 20)  # 15 MB of reasons, 80 MB of objects
        self.assertLess(resident_mib() - before, 8)


class Redefined(Policies):
    def test_a_helper_that_was_redefined_counts(self):
        """As in a notebook, where the cell of the policy itself does not run again."""
        cell = {"kvlab": kvlab}
        exec("def helper(n):\n    return n\n", cell)
        exec("@kvlab.order('uses_helper')\ndef uses_helper(request):\n    return helper(request.prompt_tokens)\n", cell)
        experiment = small(order="uses_helper", scheduler={"sarathi": {"max_num_seqs": 2}})
        first = self.run_quietly(experiment).summary["ttft_mean_ms"][0]
        exec("def helper(n):\n    return -n\n", cell)
        second = self.run_quietly(experiment).summary["ttft_mean_ms"][0]
        exec("def helper(n):\n    return n\n", cell)
        self.assertNotEqual(first, second)
        self.assertEqual(self.run_quietly(experiment).summary["ttft_mean_ms"][0], first)


class Folders(Policies):
    def test_results_and_errors_can_be_pickled(self):
        results = self.run_quietly(small())
        for again in (pickle.loads(pickle.dumps(results)), copy.deepcopy(results)):
            self.assertEqual(again.path, results.path)
            self.assertTrue(again.summary.equals(results.summary))
        with self.assertRaises(kvlab.InputError) as caught:
            self.run_quietly(small(order="no_such_order"))
        error = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(error), str(error)), (kvlab.InputError, str(caught.exception)))

    def test_a_folder_that_is_being_written_can_be_read(self):
        with self.assertRaisesRegex(kvlab.InputError, "no such folder"):
            kvlab.load("results/serving")
        seen = []

        def look(done, total, requests, seconds):
            try:
                seen.append(len(kvlab.load("results/serving").summary))
            except kvlab.InputError as error:
                seen.append(str(error))

        kvlab.run(small(seeds=40), progress=look)
        kvlab.run(small(seeds=80), progress=look, jobs=1)
        self.assertTrue(set(seen) <= {"results/serving: no table yet: they are written once runs are complete, when the sweep ends or is stopped", 40, 80}, set(seen))
        self.assertIn(40, seen)
        self.assertEqual(len(kvlab.load("results/serving").summary), 80)

    def test_a_folder_of_an_older_version(self):
        """Numbered runs, tables with fewer columns, no manifest."""
        Path("old/runs/0001").mkdir(parents=True)
        Path("old/summary.csv").write_text("run,scheduler,seed,ttft_p50_ms\n0001,orca,1,12.5\n0002,sarathi,1,8\n")
        Path("old/requests.csv").write_text("run,request,arrival_ns\n0001,0,0\n0002,0,5\n")
        Path("old/runs/0001/requests.csv").write_text("run,request,arrival_ns\n0001,0,0\n")
        results = kvlab.load("old")
        self.assertEqual((results.runs, results.axes, results.notes, results.name), (["0001", "0002"], ["scheduler"], [], "old"))
        self.assertEqual(list(results.requests["scheduler"]), ["orca", "sarathi"])
        self.assertEqual(results.pivot("ttft_p50_ms", x="scheduler")["ttft_p50_ms"].tolist(), [12.5, 8.0])
        self.assertEqual(len(results.run("0001").requests), 1)
        self.assertIn("<table", results._repr_html_())


if __name__ == "__main__":
    unittest.main()
