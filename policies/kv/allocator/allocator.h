#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/config/registration.h"
#include "policies/kv/part.h"

namespace kvlab {

struct ScoredLayer {
  std::int32_t layer = 0;
  KvRows kv;
  // [kv.total()], protected tokens +infinity; if the scorer protects a share of kept tokens, that of the target.
  const float* scores = nullptr;
  const std::int32_t* target = nullptr;  // [num_sequences] mean tokens per KV head
  const std::int32_t* full = nullptr;    // [num_sequences] length to which cut rows refill; null: target
  std::int32_t* keep = nullptr;          // [num_rows] out, at most the row's length
  const Observed* in = nullptr;          // for the same sequences
  float* marks = nullptr;                // `scores`, for allocators that fix tokens; null: a share is protected
};

class Allocator : public KvPart {
 public:
  // kLayer: called with one layer. kCascade: after each layer with all so far; may shrink them. kModel: after the last with all.
  enum class Scope : std::uint8_t { kLayer, kCascade, kModel };
  [[nodiscard]] virtual Scope scope() const { return Scope::kLayer; }
  // False: allocates once, at the prompt's end.
  [[nodiscard]] virtual bool in_decode() const { return scope() == Scope::kLayer; }
  // True: allocates once; decode keeps row lengths. Needs Trigger::keeps_counts().
  [[nodiscard]] virtual bool keeps_counts() const { return false; }
  // Before it is rounded.
  virtual void set_budget(const Budget&) {}
  // By expected(), unless data decides.
  virtual void allocate(Ops& /*ops*/, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) {
    for (ScoredLayer& l : layers)
      for (std::int32_t r = 0; r < l.kv.num_rows; ++r) {
        const std::int32_t s = l.kv.sequence(r), n = seqs[static_cast<std::size_t>(s)].end();
        l.keep[r] = std::min(l.kv.len[r], expected(model, l.layer, r % l.kv.kv_heads, l.target[s], n));
      }
  }
  // Tokens that a row keeps of n; if data decides, the mean, or counts with the layer's sum.
  [[nodiscard]] virtual std::int32_t expected(const ModelShape& /*model*/, std::int32_t /*layer*/, std::int32_t /*head*/,
                                              std::int32_t target, std::int32_t n) const {
    return std::min(target, n);
  }
  [[nodiscard]] virtual bool depends_on_data() const { return false; }
  [[nodiscard]] virtual bool reads_scores() const { return true; }
  // True: without data all layers keep the same.
  [[nodiscard]] virtual bool layers_alike() const { return false; }
  // Kept tokens that allocate() chooses and writes to ScoredLayer::marks.
  enum class FixesTokens : std::uint8_t { kNone, kSome, kAll };
  [[nodiscard]] virtual FixesTokens fixes_tokens() const { return FixesTokens::kNone; }
  // True: a share is rounded once per model; rows may hold one token more.
  [[nodiscard]] virtual bool rounds_for_model() const { return false; }
  // For rows that lose a part at once: proportional to the share of `full`; full <= target: the target's share.
  [[nodiscard]] std::int32_t expected_part(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                           std::int32_t full, std::int32_t n) const {
    if (full <= target) return expected(model, layer, head, target, n);
    return static_cast<std::int32_t>(std::int64_t{expected(model, layer, head, full, n)} * target / full);
  }
  // True: equal counts in all layers and heads.
  [[nodiscard]] virtual bool is_uniform() const { return false; }
  // True: unequal shares, mostly known without data.
  [[nodiscard]] virtual bool has_shares() const { return !depends_on_data(); }
  // len [kv_heads] of n tokens.
  [[nodiscard]] virtual bool over_shares(const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len,
                                         std::int32_t target, std::int32_t n) const {
    for (std::size_t h = 0; h < len.size(); ++h)
      if (len[h] > expected(model, layer, static_cast<std::int32_t>(h), target, n)) return true;
    return false;
  }

  [[nodiscard]] Traits provides() const override { return Traits().set(Trait::kSplitsHeads, splits_heads()); }
  [[nodiscard]] std::vector<Conflict> conflicts() const override;
};

using AllocatorRegistry = Registry<Allocator>;

}  // namespace kvlab
