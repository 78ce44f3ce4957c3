#pragma once

#include "policies/kv/policy/policy.h"
#include "sim/replay/replay.h"

namespace kvlab {

// A prefill selector against full attention, by chunk and layer, without dense layers.
class PromptFidelity {
 public:
  // Tokens [seq.seen_tokens, seq.end()).
  void add(KvPolicy& policy, Ops& ops, const AttentionTrace& trace, const ModelShape& model, std::int32_t layer, const SeqStep& seq);
  [[nodiscard]] std::int64_t queries() const { return queries_; }
  [[nodiscard]] ReplayResult::Prompt mean() const;

 private:
  std::int64_t queries_ = 0;  // times query heads
  double mass_ = 0, rel_err_ = 0, pairs_ = 0, causal_ = 0;
};

}  // namespace kvlab
