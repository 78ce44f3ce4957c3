"""Hit ratios of LRU on a trace in libCacheSim's binary format equal those of the PyPI package libcachesim.

Skipped where the package or the program (environment variable KVLAB, else build/release/kvlab) is absent.
"""

import csv
import importlib.util
import os
import pathlib
import random
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("KVLAB", ROOT / "build" / "release" / "kvlab"))
SIZES = (10, 40, 160)


def objects():
    draw = random.Random(1)
    return [min(int(draw.paretovariate(0.8)), 400) for _ in range(4000)]


def write_oracle_general(path, accesses):
    """uint32 time, uint64 object, uint32 size, int64 next access; little-endian, packed."""
    following, upcoming = {}, [-1] * len(accesses)
    for i in reversed(range(len(accesses))):
        upcoming[i] = following.get(accesses[i], -1)
        following[accesses[i]] = i
    path.write_bytes(b"".join(struct.pack("<IQIq", i // 10, one, 1, upcoming[i]) for i, one in enumerate(accesses)))


@unittest.skipUnless(importlib.util.find_spec("libcachesim"), "the package libcachesim is absent")
@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is absent")
class LruEqualsLibCacheSim(unittest.TestCase):
    def test_hit_ratios(self):
        import libcachesim

        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            trace = folder / "t.oracleGeneral"
            write_oracle_general(trace, objects())
            (folder / "mrc.yaml").write_text(
                "kind: block_cache_mrc\nblock_caches: lru\nblock_tokens: 16\n"
                f"capacity_blocks: {list(SIZES)}\ntrace: {{file: {trace}, format: oracle_general}}\n")
            subprocess.run([PROGRAM, "run", folder / "mrc.yaml", "--out", folder / "out"], check=True, cwd=ROOT, capture_output=True)
            with open(folder / "out" / "summary.csv", newline="", encoding="utf-8") as file:
                ours = {int(row["capacity_blocks"]): float(row["hit_frac"]) for row in csv.DictReader(file)}
            reader = libcachesim.TraceReader(trace=str(trace), trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE,
                                             reader_init_params=libcachesim.ReaderInitParam(ignore_obj_size=True))
            for size in SIZES:
                reader.reset()
                missed = libcachesim.LRU(cache_size=size).process_trace(reader)[0]
                self.assertAlmostEqual(ours[size], 1 - missed, places=6, msg=f"{size} blocks")


if __name__ == "__main__":
    unittest.main()
