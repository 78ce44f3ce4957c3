#!/usr/bin/env python3
"""Times PyTorch's operations for the cases of kernel_bench, under the same names and in the same JSON.

    python3 bench/peers.py [--filter REGEX] [--out FILE.json] [--seconds 0.2]

Needs PyTorch with CUDA; without it says so and ends with status 0. K and V are contiguous here, paged in kernel_bench. Cold as there:
operands rotate through copies that make up three times the L2 cache; a time is the median of batches between two events, queued after a
wait on the GPU.
"""

import argparse
import json
import re
import statistics
import sys


def load_torch():
    try:
        import torch
    except ImportError:
        return None, "no PyTorch here"
    if not torch.cuda.is_available():
        return None, "PyTorch sees no GPU"
    return torch, ""


class Timer:
    def __init__(self, torch, seconds):
        self.torch, self.seconds = torch, seconds
        self.cold_bytes = 3 * torch.cuda.get_device_properties(0).L2_cache_size

    def copies(self, make, bytes_each):
        return [make() for _ in range(max(1, min(4096, -(-self.cold_bytes // max(1, bytes_each)))))]

    def microseconds(self, call, operands):
        """Median over samples of one call, and the distance of the quartiles over the median."""
        torch = self.torch
        for operand in operands[:3]:
            call(operand)
        once = self.batch(call, operands, 0, 1)
        calls = max(1, min(64, int(50 / max(once, 0.1))))
        samples, spent, at = [], 0.0, 0
        while len(samples) < 5 or (spent < self.seconds * 1e6 and len(samples) < 2000):
            samples.append(self.batch(call, operands, at, calls) / calls)
            spent += samples[-1] * calls
            at += calls
        low, median, high = statistics.quantiles(samples, n=4)
        torch.cuda.synchronize()
        return median, (high - low) / median

    def batch(self, call, operands, at, calls):
        begin, end = self.torch.cuda.Event(enable_timing=True), self.torch.cuda.Event(enable_timing=True)
        self.torch.cuda._sleep(200_000 + 40_000 * calls)  # cycles: the calls are queued meanwhile
        begin.record()
        for i in range(calls):
            call(operands[(at + i) % len(operands)])
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3


def attention_cases(torch, timer):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    q_heads, kv_heads, d = 32, 8, 128

    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def runner(backend, causal):
        def run(o):
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(*o, is_causal=causal, enable_gqa=True)
        return run

    for label, backend in backends.items():
        for b, n in ((64, 4096), (32, 4096), (1, 32768), (1, 4096)):
            size = 4 * b * n * kv_heads * d
            yield (f"decode_attention/bf16/b{b}_n{n}_q{q_heads}_kv{kv_heads}_d{d}", label, runner(backend, False), size + 4 * b * q_heads * d,
                   4 * b * n * q_heads * d, lambda b=b, n=n: (random(b, q_heads, 1, d), random(b, kv_heads, n, d), random(b, kv_heads, n, d)))
        n = 8192
        yield (f"attention_prefill/bf16/m{n}_n0_q{q_heads}_kv{kv_heads}_d{d}", label, runner(backend, True), 4 * n * (kv_heads + q_heads) * d,
               2 * n * (n + 1) * q_heads * d, lambda n=n: (random(1, q_heads, n, d), random(1, kv_heads, n, d), random(1, kv_heads, n, d)))


def other_cases(torch, timer):
    for out, width in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
        for m in (1, 64, 1024, 8192):
            yield (f"linear/bf16/m{m}_n{out}_k{width}", "cublas", lambda o: torch.nn.functional.linear(*o), 2 * (m * (out + width) + out * width),
                   2 * m * out * width, lambda m=m, out=out, width=width: (torch.randn(m, width, device="cuda", dtype=torch.bfloat16),
                                                                         torch.randn(out, width, device="cuda", dtype=torch.bfloat16)))
    for rows, n, k in ((64, 32768, 4096), (8, 32768, 4096), (512, 8192, 1024)):
        yield (f"top_k/f32/r{rows}_n{n}_k{k}", "torch", lambda o, k=k: torch.topk(o[0], k), 4 * rows * (n + k), 2 * rows * n,
               lambda rows=rows, n=n: (torch.randn(rows, n, device="cuda"),))


def rates(torch, timer):
    x = torch.randn(1 << 28, device="cuda", dtype=torch.float16)
    copy_us, _ = timer.microseconds(lambda o: o[1].copy_(o[0]), [(x, torch.empty_like(x))])
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    gemm_us, _ = timer.microseconds(lambda o: o @ o, [a])
    return 2 * x.numel() * 2 / copy_us * 1e6, 2 * 8192**3 / gemm_us * 1e6


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--filter", default=".", help="regular expression that a case's name has to match")
    arguments.add_argument("--out", help="JSON file in the form of Google Benchmark's")
    arguments.add_argument("--seconds", type=float, default=0.2, help="of samples per case")
    options = arguments.parse_args()
    torch, why_not = load_torch()
    if torch is None:
        print(f"peers.py: {why_not}: nothing is timed")
        return 0
    timer = Timer(torch, options.seconds)
    copy_rate, gemm_rate = rates(torch, timer)
    context = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cache": "cold", "copy_bytes_per_s": copy_rate, "gemm_flops_per_s": gemm_rate}
    results = []
    for make_cases in (attention_cases, other_cases):
        for name, label, call, size, flops, make in make_cases(torch, timer):
            if not re.search(options.filter, name):
                continue
            try:
                us, spread = timer.microseconds(call, timer.copies(make, size))
            except RuntimeError as error:  # this library does not take the shape on this card
                print(f"{name:<56} {label:<8} {str(error).splitlines()[0]}")
                continue
            results.append({"name": name, "label": label, "real_time": us, "time_unit": "us", "bytes_per_s": size / us * 1e6, "flops_per_s": flops / us * 1e6,
                            "frac_of_copy_bw": size / us * 1e6 / copy_rate, "frac_of_gemm_rate": flops / us * 1e6 / gemm_rate, "spread": spread})
            print(f"{name:<56} {label:<8} {us:10.1f} us  {results[-1]['frac_of_copy_bw']:.2f} of copy  {results[-1]['frac_of_gemm_rate']:.2f} of gemm")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"context": context, "benchmarks": results}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
