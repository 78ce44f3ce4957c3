"""Tables of the package aisimulate, parquet frames in milliseconds, as the simulator's tables in nanoseconds: one function for each kind."""

from dataclasses import dataclass

import pandas as pd

NS_PER_MS = 1e6
MARGIN = 1.02  # as of the simulator's own lint
HALF_BYTES = 2
FALL = 0.1  # by which a message may take longer than a longer one
SHORTEST_MS = 1e-6  # a nanosecond: times are above 0
# Bytes of a weight with its share of the scales, by the package's names of types.
WEIGHT_BYTES = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_block": 1, "sq": 1, "int8_wo": 1, "int4_wo": 0.5, "nvfp4": 0.5625}
KV_BYTES = {"bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}


@dataclass
class Card:
    """Datasheet figures, per second; None: not known."""

    memory_bytes_per_s: float
    l2_bytes: float
    bf16_flops: float
    fp8_flops: float = None
    fp4_flops: float = None
    int8_ops: float = None

    def peak(self, dtype):
        known = {"fp8": self.fp8_flops, "fp8_block": self.fp8_flops, "nvfp4": self.fp4_flops, "sq": self.int8_ops}
        return known.get(dtype, self.bf16_flops) or float("inf")


def possible(frame, flops, moved_bytes, peak, card, what, notes):
    """Rows that the card can reach; the others are left out and counted. An L2 cache full of operands may have been there before."""
    if card is None:
        return frame
    limit_s = frame.latency / 1e3 * MARGIN
    is_fast = ((moved_bytes - card.l2_bytes) / card.memory_bytes_per_s > limit_s) | (flops / peak > limit_s)
    if is_fast.any():
        notes.append(f"lint: {is_fast.sum():,} of {len(frame):,} {what} rows are faster than the memory or the peak rate, left out")
    return frame[~is_fast]


def merge(frame, keys, what, notes):
    """One row for each shape: the mean of what one kernel was measured at several times, the fastest of several kernels."""
    kernels = ["kernel_source"] if "kernel_source" in frame else []
    means = frame.groupby([*keys, *kernels], as_index=False).latency.mean()
    rows = means.groupby(keys, as_index=False).latency.min()
    if len(rows) < len(means):
        notes.append(f"{what}: {len(means) - len(rows):,} times of slower kernels for the same shape are left out")
    return rows


def finish(rows, columns):
    """Names and order of the columns as the simulator reads them, rows ascending."""
    rows = rows.assign(time_ns=rows.latency * NS_PER_MS).rename(columns=columns)
    keys = list(columns.values())
    return rows[[*keys, *[c for c in rows.columns if c.endswith("_ns")]]].sort_values(keys)


def gemm(frame, card, arguments, notes):
    made = {}
    for dtype, rows in frame.groupby("gemm_dtype"):
        if dtype not in WEIGHT_BYTES:
            notes.append(f"gemm: {len(rows):,} rows of type {dtype} are not known, left out")
            continue
        moved = rows.m * (rows.n + rows.k) * HALF_BYTES + rows.n * rows.k * WEIGHT_BYTES[dtype]
        peak = card.peak(dtype) if card else None
        rows = possible(rows, 2.0 * rows.m * rows.n * rows.k, moved, peak, card, f"gemm {dtype}", notes)
        rows = merge(rows, ["n", "k", "m"], f"gemm {dtype}", notes)
        made[f"gemm_{dtype}"] = finish(rows, {"n": "n", "k": "k", "m": "m"})
    return made


SHAPE = {"window_size": "window", "head_dim": "head_dim", "num_key_value_heads": "kv_heads", "num_heads": "q_heads"}


def attention_rows(frame, what, notes):
    """Rows of bf16 attention by the type of their KV. Older tables have no windows."""
    frame = frame if "window_size" in frame else frame.assign(window_size=0)
    others = ~frame.attn_dtype.isin(["bfloat16", "float16"])
    if others.any():
        notes.append(f"{what}: {others.sum():,} rows that attend in {', '.join(sorted(frame.attn_dtype[others].unique()))} are left out")
    return frame[~others].groupby("kv_cache_dtype")


def decode(frame, card, arguments, notes):
    made = {}
    for dtype, rows in attention_rows(frame, "decode attention", notes):
        rows = rows.assign(context=rows.step + rows.isl)  # a row's own token included
        seen = rows.context.where((rows.window_size == 0) | (rows.context < rows.window_size), rows.window_size)
        width = rows.batch_size * rows.head_dim
        moved = 2.0 * width * seen * rows.num_key_value_heads * KV_BYTES[dtype] + 2.0 * width * rows.num_heads * HALF_BYTES
        rows = possible(rows, 4.0 * width * seen * rows.num_heads, moved, card and card.bf16_flops, card, f"decode attention {dtype}", notes)
        rows = merge(rows, [*SHAPE, "batch_size", "context"], f"decode attention {dtype}", notes)
        made[f"attention_decode_{dtype}"] = finish(rows, {**SHAPE, "batch_size": "rows", "context": "context"})
    return made


def prefill(frame, card, arguments, notes):
    """time_ns of one prompt, and more_ns, which one prompt more adds to a call: the mean over the largest batch."""
    made = {}
    for dtype, rows in attention_rows(frame, "prefill attention", notes):
        window = rows.window_size.where(rows.window_size > 0, rows.isl).clip(upper=rows.isl)
        pairs = window * (window + 1) / 2 + (rows.isl - window) * window
        flops = 4.0 * rows.batch_size * pairs * rows.num_heads * rows.head_dim
        width = 2.0 * rows.batch_size * rows.isl * rows.head_dim
        moved = width * (rows.num_key_value_heads * KV_BYTES[dtype] + rows.num_heads * HALF_BYTES)
        rows = possible(rows, flops, moved, card and card.bf16_flops, card, f"prefill attention {dtype}", notes)
        keys = [*SHAPE, "isl"]
        rows = merge(rows, [*keys, "batch_size"], f"prefill attention {dtype}", notes)
        one = rows[rows.batch_size == 1].drop(columns="batch_size")
        most = rows.sort_values("batch_size").groupby(keys, as_index=False).last().rename(columns={"latency": "all", "batch_size": "prompts"})
        both = one.merge(most, on=keys)
        more = ((both["all"] - both.latency) / (both.prompts - 1)).where(both.prompts > 1, both.latency)
        both["more_ns"] = more.clip(lower=SHORTEST_MS, upper=both.latency) * NS_PER_MS
        made[f"attention_prefill_{dtype}"] = finish(both.drop(columns=["all", "prompts"]), {**SHAPE, "isl": "tokens"})
    return made


def moe(frame, card, arguments, notes):
    if "default_eligible" in frame:
        frame = frame[frame.default_eligible.astype(bool)]
    rows = frame[frame.distribution == arguments.routing]
    if rows.empty:
        notes.append(f"moe: no rows of routing {arguments.routing}; there is {', '.join(sorted(frame.distribution.unique()))} (--routing)")
        return {}
    columns = {"hidden_size": "hidden", "inter_size": "intermediate", "num_experts": "experts", "topk": "experts_per_token",
               "moe_tp_size": "tp", "moe_ep_size": "ep", "num_tokens": "tokens"}
    notes.append(f"moe: tokens are spread over experts as {arguments.routing} (--routing)")
    return {f"moe_{dtype}": finish(merge(one, list(columns), f"moe {dtype}", notes), columns) for dtype, one in rows.groupby("moe_dtype")}


COLLECTIVES = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}


def as_bytes(frame):
    """The package counts elements; those of these types have two bytes."""
    return frame.assign(bytes=frame.message_size * HALF_BYTES, ranks=frame.num_gpus)[["bytes", "ranks", "latency"]]


def newest_nccl(frames, op):
    """The newest version of NCCL that has the operation in half precision; `frames`: newest first."""
    for frame in frames:
        rows = frame[(frame.op_name == op) & (frame.nccl_dtype == "half")]
        if len(rows):
            return as_bytes(rows)
    return None


def undisturbed(rows, name, notes):
    """Without messages that took longer by more than FALL than a longer one of as many ranks."""
    rows = rows.sort_values(["ranks", "bytes"], ascending=[True, False])
    least_of_longer = rows.groupby("ranks").latency.cummin().groupby(rows.ranks).shift(1)
    is_slow = rows.latency > least_of_longer * (1 + FALL)
    if is_slow.any():
        notes.append(f"{name}: {is_slow.sum()} of {len(rows)} messages took longer than longer ones, left out")
    return rows[~is_slow]


def collectives(custom, nccl, notes):
    """All-reduce as the engine chooses it, inside CUDA graphs; NCCL for sizes and ranks beyond that table, and for the others."""
    found = {ours: newest_nccl(nccl, theirs) for theirs, ours in COLLECTIVES.items()}
    if custom is not None:
        is_graph = custom.backend.str.endswith("graph") if "backend" in custom else pd.Series(True, custom.index)
        own = as_bytes(custom[is_graph] if is_graph.any() else custom)
        other = found["all_reduce"]
        if other is not None:
            largest = other.ranks.map(own.groupby("ranks").bytes.max()).fillna(0)
            own = pd.concat([own, other[other.bytes > largest]])
        found["all_reduce"] = own
    made = {}
    for name, rows in found.items():
        if rows is not None:
            rows = undisturbed(rows.groupby(["ranks", "bytes"], as_index=False).latency.min(), name, notes)
            made[name] = finish(rows, {"ranks": "ranks", "bytes": "bytes"})[["bytes", "ranks", "time_ns"]]
    return made
