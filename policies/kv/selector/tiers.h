#pragma once

#include <cstdint>
#include <limits>

#include "policies/kv/selector/selection.h"

// The GPU holds the last step's tokens, CPU memory the rest.
namespace kvlab {

class TierTraffic : public ReuseTraffic {
 public:
  explicit TierTraffic(KvPart& part) : ReuseTraffic(part), held_(part) {}
  // When a prompt completes, units from(r) and later stay on the GPU.
  template <class From>
  void begin(const LayerStep& step, From&& from) {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      if (seq_of(step, r).completes_prompt()) hold_from(step, r, from(r));
  }
  // After the last tracked step.
  void hold_from(const LayerStep& step, std::int32_t r, std::int32_t unit) { held_.at(step, r).from = unit; }
  void read_all(const LayerStep& step) {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) hold_from(step, r, 0);
  }
  // asked: units that may need a fetch; now: all read, with this step's token. unit_bytes: transferred per unit of a row (keys, values or
  // both); disk_unit_bytes: of these from disk, on average.
  void track(LayerStep& step, const UnitLists& asked, const UnitLists& now, std::int64_t unit_bytes, std::int64_t disk_unit_bytes = 0);

 private:
  struct Held {
    std::int32_t from = std::numeric_limits<std::int32_t>::max();
  };
  PerRow<Held> held_;
};

inline UnitLists lists_of(const Selection& selection) { return {.first = selection.index_first, .unit = selection.index}; }

// After the first head[r].
UnitLists in_row(LayerStep& step, const Selection& selection, const std::int32_t* head, const std::int32_t* count);

// For Selector::stays(): [0, head(r)) and [tail(r), end) of rows with a prompt that this step completes.
template <class Head, class Tail>
Selection ends_of_prompts(LayerStep& step, Head&& head, Tail&& tail) {
  const auto completes = [](const SeqStep& seq) { return seq.completes_prompt(); };
  if (std::none_of(step.seqs.begin(), step.seqs.end(), completes)) return {};
  const std::int32_t* to = per_row(step, [&](std::int32_t r) { return completes(seq_of(step, r)) ? tail(r) : step.kv.len[r]; });
  const std::int32_t* from = per_row(step, [&](std::int32_t r) { return completes(seq_of(step, r)) ? std::min(head(r), to[r]) : 0; });
  return expand(step, {.lists = no_units(step), .head = from, .tail = to});
}

TierBytes to_host(const TierBytes& held, std::int64_t bytes);

TierBytes keep_on_gpu(const TierBytes& held, std::int64_t part, std::int64_t whole);

// For methods that fetch before this step's query is known.
class LastQueries {
 public:
  explicit LastQueries(KvPart& part) : memory_(part), known_(part) {}
  // Kept queries, or this step's if none.
  std::span<const Queries> before(const LayerStep& step);
  void keep(LayerStep& step);

 private:
  RowMemory<float> memory_;
  PerRow<char> known_;
  std::vector<Queries> view_;
};

}  // namespace kvlab
