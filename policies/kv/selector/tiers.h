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
  // all: rows are read whole. Returns it.
  bool reads_all(const LayerStep& step, bool all) {
    for (std::int32_t r = 0; all && r < step.kv.num_rows; ++r) hold_from(step, r, 0);
    return all;
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

// Of a completed prompt, [0, head_of(r)) and [held_from(r), end) stay on the GPU.
class TierSelector : public QuerySelector<TierTraffic> {
 public:
  Selection stays(LayerStep& step) override;

 protected:
  virtual std::int32_t head_of(const LayerStep&, std::int32_t /*row*/) { return 0; }
  virtual std::int32_t held_from(const LayerStep& step, std::int32_t row) = 0;
};

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
