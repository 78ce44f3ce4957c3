#pragma once

#include <cstdint>

#include "policies/kv/selector/selection.h"

// What selectors share whose keys and values lie on several tiers: the GPU holds what the last step read, the host the rest.
namespace kvlab {

// Counts what a step reads and the last one did not: that comes from a lower tier.
class TierTraffic {
 public:
  // `asked` are units that may have to be fetched, `now` all that the step reads, this step's token among them. unit_bytes: of one
  // unit of one row, as far as it must come (keys, values or both).
  void track(LayerStep& step, const UnitLists& asked, const UnitLists& now, std::int64_t unit_bytes);
  Traffic take();
  void forget(std::int32_t index);

 private:
  RowMemory<std::int32_t> last_;
  PerRow<std::int32_t> last_count_;
  Traffic traffic_;
};

// A selection as lists.
inline UnitLists lists_of(const Selection& selection) {
  UnitLists lists;
  lists.first = selection.index_first;
  lists.unit = selection.index;
  return lists;
}

// Tokens [0, head[r]), those of the ascending lists, then all from tail[r] on; head null: none.
Selection tokens_and_tail(LayerStep& step, const UnitLists& lists, const std::int32_t* head, const std::int32_t* tail);

// `bytes` of what is held on the GPU move to the host.
TierBytes to_host(const TierBytes& held, std::int64_t bytes);

// Share `part` of `whole` tokens stays on the GPU, the others' bytes move to the host.
TierBytes keep_on_gpu(const TierBytes& held, std::int64_t part, std::int64_t whole);

// The query of each sequence's last step, for methods that must know what to fetch before this step's query is there.
class LastQueries {
 public:
  // The kept queries, or this step's where none is kept.
  std::span<const Queries> before(const LayerStep& step);
  // Keeps the newest query of this step.
  void keep(LayerStep& step);
  void forget(std::int32_t index);

 private:
  RowMemory<float> memory_;
  PerRow<char> known_;
  std::vector<Queries> view_;
};

}  // namespace kvlab
