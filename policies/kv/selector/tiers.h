#pragma once

#include <cstdint>
#include <limits>

#include "policies/kv/selector/selection.h"

// Shared by selectors with keys and values on several tiers: the GPU holds the tokens that the last step read, CPU memory the rest.
namespace kvlab {

// Counts the units that a step reads and the last one did not: these come from a lower tier.
class TierTraffic {
 public:
  // In the step that completes a prompt: units of its rows from from(r) on stay on the GPU.
  template <class From>
  void begin(const LayerStep& step, From&& from) {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      if (seq_of(step, r).completes_prompt()) hold_from(step, r, from(r));
  }
  // The step that was tracked last leaves units of the row from this one on on the GPU, listed as read or not.
  void hold_from(const LayerStep& step, std::int32_t r, std::int32_t unit) { held_.at(step, r).from = unit; }
  // A step that reads everything. Rows that do held everything before.
  void read_all(const LayerStep& step) {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) hold_from(step, r, 0);
  }
  // `asked` are units that may have to be fetched, `now` all that the step reads, this step's token among them. unit_bytes: of one
  // unit of one row, as far as it must come (keys, values or both); disk_unit_bytes: on average read from disk for one that comes.
  void track(LayerStep& step, const UnitLists& asked, const UnitLists& now, std::int64_t unit_bytes, std::int64_t disk_unit_bytes = 0);
  Traffic take();
  void forget(std::int32_t index);

 private:
  struct Held {
    std::int32_t from = std::numeric_limits<std::int32_t>::max();  // units from here on are on the GPU before the next step
  };
  RowMemory<std::int32_t> last_;
  PerRow<std::int32_t> last_count_;
  PerRow<Held> held_;
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

// The count[r] tokens of a selection that follow the first head[r] of each row.
UnitLists in_row(LayerStep& step, const Selection& selection, const std::int32_t* head, const std::int32_t* count);

// For Selector::stays(): tokens [0, head(r)) and all from tail(r) on, of rows whose prompt is complete with this step; none of other rows.
template <class Head, class Tail>
Selection ends_of_prompts(LayerStep& step, Head&& head, Tail&& tail) {
  const auto completes = [](const SeqStep& seq) { return seq.completes_prompt(); };
  if (std::none_of(step.seqs.begin(), step.seqs.end(), completes)) return {};
  const std::int32_t n = step.kv.num_rows;
  const std::int32_t* to = per_row(step.ops, n, [&](std::int32_t r) { return completes(seq_of(step, r)) ? tail(r) : step.kv.len[r]; });
  const std::int32_t* from =
      per_row(step.ops, n, [&](std::int32_t r) { return completes(seq_of(step, r)) ? std::min(head(r), to[r]) : 0; });
  UnitLists none;
  none.first = prefix_sums(step.ops, n, [](std::int32_t) { return 0; });
  none.unit = step.ops.ints(0);
  return tokens_and_tail(step, none, from, to);
}

// `bytes` of those held on the GPU move to CPU memory.
TierBytes to_host(const TierBytes& held, std::int64_t bytes);

// Share `part` of `whole` tokens stays on the GPU, the others' bytes move to CPU memory.
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
