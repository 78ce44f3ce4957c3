#pragma once

#include <cstdint>

#include "base/config/registration.h"
#include "policies/kv/part.h"

namespace kvlab {

// Cuts of a row in decode.
struct FewTokens {
  bool alike = false;     // equal counts in a layer's KV heads
  std::int32_t unit = 1;  // tokens per cut; row lengths are multiples
};

// Importance of cached tokens per KV head; higher stays.
class Scorer : public KvPart {
 public:
  // Before it is rounded to tokens. Called before the first step.
  virtual void set_budget(const Budget&) {}
  // After attention.
  virtual void observe(LayerStep&) {}
  // [kv.total()], overwritten.
  virtual void score(LayerStep& step, float* scores) = 0;
  // Second stage, with counts keep [kv.num_rows]; protected tokens have +infinity. May lower counts, or set them for whole chunks; counts
  // from data pass through ops.settle.
  virtual void refine(LayerStep&, std::int32_t* /*keep*/, float* /*scores*/) {}
  [[nodiscard]] virtual Protected protects() const { return {}; }
  // True: calls are affine in lengths of growing rows while others are cut.
  [[nodiscard]] virtual bool cuts_affinely() const { return false; }
  [[nodiscard]] virtual bool comparable_across_heads() const { return true; }
  // True: refine() ranks again, so allocators must not choose all tokens.
  [[nodiscard]] virtual bool ranks_after_counts() const { return false; }
  [[nodiscard]] virtual bool marks_tokens() const { return false; }
  // True: decode scores do not depend on other tokens' places.
  [[nodiscard]] virtual bool is_order_free(const FewTokens&) const { return false; }
  // True: scores are positions; the oldest of the latest tokens leaves unscored.
  [[nodiscard]] virtual bool keeps_latest() const { return false; }

  [[nodiscard]] Traits provides() const override;
  [[nodiscard]] std::vector<Conflict> conflicts() const override;
};

using ScorerRegistry = Registry<Scorer>;

}  // namespace kvlab
