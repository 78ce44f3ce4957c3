"""Times policies in Python against the same rules in C++: python3 bench/python_policies.py, with an interpreter that has the package.

CPU seconds of one process with one job, the least of five runs; and microseconds beyond the same rule in C++ that simulates every step, for
each step and for each key that is asked. In the queue of the orders 13 requests wait on average."""

import tempfile
import time

import kvlab


@kvlab.order("bench_once")
def bench_once(request):
    return request.prompt_tokens


@kvlab.order("bench_asked")
def bench_asked(request, now):
    return request.prompt_tokens


keys_asked = [0]


@kvlab.order("bench_counted")
def bench_counted(request, now):
    keys_asked[0] += 1
    return request.prompt_tokens


@kvlab.scheduler("bench_sarathi")
class Sarathi:
    def __init__(self, *, budget_tokens=512, max_num_seqs=128):
        self.budget_tokens, self.max_num_seqs = budget_tokens, max_num_seqs

    def plan(self, view, plan):
        chunks = []
        for r in view.each_running():
            m = view.needed_tokens(r)
            if r.output_tokens == 0 or m > 1:
                chunks.append((r, m))
            elif m == 1 and view.allocate_or_preempt(r, 1):
                plan.add(r, 1)
        for r, m in chunks:
            m = min(m, self.budget_tokens - plan.tokens) if r.is_running else 0
            if m > 0 and view.allocate_or_preempt(r, m):
                plan.add(r, m)
        spare = int(0.01 * view.num_blocks)
        while view.num_waiting and view.num_running < self.max_num_seqs:
            r = view.waiting(0)
            left = view.needed_tokens(r) if view.readiness(r) == "ready" else 0
            m = min(left, self.budget_tokens - plan.tokens)
            if m <= 0 or view.free_blocks - view.blocks_needed(r, left) < spare or not view.try_allocate(r, m, left - m):
                return
            view.admit(r)
            plan.add(r, m)


SJF = {"sjf": {"counts_output": False, "counts_prompt": True}}
QUEUE = {"scheduler": {"sarathi": {"max_num_seqs": 24}}}
# Name, experiment, fast-forward.
CASES = [
    ("order sjf", {**QUEUE, "order": SJF}, True),
    ("order sjf, every step simulated", {**QUEUE, "order": SJF}, False),
    ("order in Python, key(request)", {**QUEUE, "order": "bench_once"}, True),
    ("order in Python, key(request, now)", {**QUEUE, "order": "bench_asked"}, True),
    ("scheduler sarathi", {"scheduler": "sarathi"}, True),
    ("scheduler sarathi, every step simulated", {"scheduler": "sarathi"}, False),
    ("scheduler in Python", {"scheduler": "bench_sarathi"}, True),
]
CHAT = {
    "name": "speed",
    "model": "llama-3.1-8b",
    "hardware": "h100",
    "max_model_len": 8192,
    "trace": {
        "generate": {
            "requests": 4000,
            "arrival": {"poisson": {"rate_per_s": 12}},
            "prompt_tokens": {"uniform": {"min": 100, "max": 2000}},
            "output_tokens": {"uniform": {"min": 10, "max": 400}},
        }
    },
}


def measure(experiment, fast_forward):
    best, results = float("inf"), None
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(5):
            began = time.process_time()
            results = kvlab.run({**CHAT, **experiment}, out=f"{folder}/speed", jobs=1, force=True, quiet=True, fast_forward=fast_forward)
            best = min(best, time.process_time() - began)
        return best, results.summary.iloc[0]


def main():
    base = 0.0
    kvlab.run({**CHAT, **QUEUE, "order": "bench_counted"}, out=tempfile.mkdtemp(), jobs=1, quiet=True)
    for name, experiment, fast_forward in CASES:
        seconds, row = measure(experiment, fast_forward)
        if not fast_forward:
            base = seconds
        more = 1e6 * (seconds - base)
        extra = f"{more / row['steps']:8.1f} us per step" if "Python" in name else ""
        extra += f", {more / keys_asked[0]:.2f} us per key of {keys_asked[0]}" if "now" in name else ""
        print(f"{name:42} {seconds:7.2f} s {int(row['steps']):8} steps {row['e2e_p50_ms']:9.1f} ms {extra}")


if __name__ == "__main__":
    main()
