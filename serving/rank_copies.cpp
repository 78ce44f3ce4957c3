// KV copies between a rank's GPU memory and CPU memory, stores, and other ranks.
#include <algorithm>
#include <cstdint>
#include <span>

#include "base/ceil_div.h"
#include "serving/rank.h"

namespace kvlab {

Picoseconds Rank::begin_copies(Picoseconds at) {
  Picoseconds out_end;
  CopiesOut& beside = state.copies_out();
  for (const SwapCopy& copy : state.swap_copies()) {
    if (copy.is_import) {
      const Picoseconds end = start_import(copy, at);
      queue_end(end, Phase::kDispatch, EventKind::kImportEnd, copy.request);
      continue;
    }
    const std::span<const BlockId> blocks = state.table()[copy.request].blocks;
    const Picoseconds from = copy.to_host ? at : std::max({at, beside.end_of(copy.request), beside.free_at(blocks)});
    const Picoseconds end = device->copy(copy, from);
    if (copy.to_host) beside.forget(copy.request);
    if (!copy.beside.empty())
      beside.begin(copy.request, copy.beside, end);
    else if (copy.joins || (copy.to_host && !copy.is_ahead))
      out_end = std::max(out_end, end);
    else
      queue_end(end, Phase::kComplete, EventKind::kSwapEnd, copy.request);
  }
  state.swap_copies().clear();
  if (std::vector<BlockId>& taken = state.memory().taken(); !taken.empty()) {
    out_end = std::max(out_end, beside.free_at(taken));
    taken.clear();
  }
  return out_end;
}

// Returns when the KV is here.
Picoseconds Rank::start_import(const SwapCopy& copy, Picoseconds at) {
  const KvOffer& offer = *state.transits().offer(copy.request);
  const Request& r = state.table()[copy.request];
  const Picoseconds start = std::max(at, state.copies_out().free_at(r.blocks));
  if (offer.is_prefix) return start_prefix(copy, offer, start);
  const bool has_waited = offer.has_waited || start > at;
  KvFetch fetch{offer.replica, offer.to_replica, copy.blocks, copy.blocks * block_bytes_, copy.blocks, has_waited ? start : offer.begun,
                offer.ready};
  if (!r.left_hashed && static_cast<std::int64_t>(offer.blocks.size()) >= copy.blocks) {
    const auto count = static_cast<std::size_t>(copy.blocks);
    const std::size_t first = offer.blocks.size() - count;
    fetch.runs = adjacent_runs(std::span(offer.blocks).subspan(first), std::span(r.blocks).subspan(first, count));
  }
  if (has_waited) fetch.ready = start;
  const Transfers::Times times = transfers_.begin(fetch, start);
  sink_.transfer({r.number, offer.rank, state.memory().limits().replica, r.computed_tokens, fetch.bytes, times.calls, to_time(offer.ready),
                  to_time(start), to_time(times.end)});
  return times.end;
}

// Leading blocks from the own store, then from another replica's, both copied at once. Returns when all are here. One call per stored
// block.
Picoseconds Rank::start_prefix(const SwapCopy& copy, const KvOffer& offer, Picoseconds at) {
  const Request& r = state.table()[copy.request];
  KvMemory& memory = state.memory();
  const std::int64_t all = memory.blocks_for(r.computed_tokens), cached = all - copy.blocks;
  const std::int64_t ratio = memory.store->block_tokens() / memory.limits().block_tokens;
  const std::int64_t own_end = std::min(all, std::ssize(offer.own_blocks) * ratio), other_begin = std::max(cached, own_end);
  const auto calls = [&](std::int64_t begin, std::int64_t end) { return ceil_div(end, ratio) - begin / ratio; };
  Picoseconds end = at;
  if (own_end > cached) {
    memory.store->use().loaded_bytes += (own_end - cached) * block_bytes_;
    SwapCopy own{copy.request, own_end - cached, false, calls(cached, own_end)};
    own.is_stored = true;
    end = device->copy(own, at);
  }
  const std::int64_t blocks = all - other_begin;
  if (blocks <= 0) return end;
  const KvFetch fetch{offer.replica, offer.to_replica, blocks, blocks * block_bytes_, blocks, at, at, calls(other_begin, all)};
  const Transfers::Times times = transfers_.begin(fetch, at);
  sink_.transfer({r.number, offer.rank, memory.limits().replica, r.computed_tokens, fetch.bytes, times.calls, to_time(at), to_time(at),
                  to_time(times.end)});
  return std::max(end, times.end);
}

// Prompts that the latest output completed.
void Rank::start_writes(Picoseconds at) {
  for (const SwapCopy& copy : state.store_copies()) queue_end(device->copy(copy, at), Phase::kComplete, EventKind::kStoreEnd, copy.request);
  state.store_copies().clear();
}

void Rank::queue_end(Picoseconds at, Phase phase, EventKind kind, RequestId subject) {
  queue_.push(at, phase, kind, state.memory().limits().replica, index(subject));
}

}  // namespace kvlab
