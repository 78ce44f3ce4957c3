#pragma once

#include "kernels/kv_rows.h"
#include "policies/kv/disposal/disposal.h"
#include "policies/kv/selector/row_state.h"

namespace kvlab {

// Scratch of step.ops.
PartedRows part_rows(LayerStep& step, const Kept& kept);

// Moves kept tokens to the front of their rows.
void compact(LayerStep& step, const Kept& kept);

// Attention per token since it was cached, mean over a KV head's query heads, in word `first_word`. Call observe() in every step. Results
// [kv.total()] are scratch of step.ops.
namespace attention_mass {
inline Needs needs() { return {.step_queries = true}; }
void observe(LayerStep& step, std::int32_t first_word);
// per_query: divided by the number of queries that saw the token.
[[nodiscard]] const float* sum(LayerStep& step, std::int32_t first_word, bool per_query);
}  // namespace attention_mass

// Counts the tokens that left each row; only evicted ones do.
class CountingDisposal : public InPlaceDisposal {
 public:
  void observe(LayerStep& step) final;
  void dispose(LayerStep& step, const Kept& kept) final {
    let_go(step, kept);
    compact(step, kept);
  }
  [[nodiscard]] TierBytes resident(const ModelShape& model, std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv,
                                   const Format& format, const TierBytes& rows) const final;

 protected:
  using InPlaceDisposal::InPlaceDisposal;
  static std::int32_t dropped_before(const LayerStep& step, std::int32_t row) {
    return step.seqs[static_cast<std::size_t>(step.kv.sequence(row))].end() - step.kv.len[row];
  }
  // part_rows(), its dropped tokens counted.
  PartedRows count_dropped(LayerStep& step, const Kept& kept);
  // For a row that lost `count` tokens.
  [[nodiscard]] virtual TierBytes bytes_of(const ModelShape& model, std::int32_t layer, const Format& format, std::int32_t count) const = 0;

 private:
  PerRow<std::int32_t> count_{*this};
};

}  // namespace kvlab
