#pragma once

#include <cstdint>

#include "base/ceil_div.h"
#include "kernels/select/page_summaries_op.h"
#include "policies/kv/selector/row_state.h"

namespace kvlab {

// Unit j is a row's tokens [j * stride, j * stride + span). Restarts after an eviction.
class KeySummaries {
 public:
  // kBounds: each channel's minimum and maximum, span = stride; kMeans: mean key.
  enum class Kind : std::uint8_t { kBounds, kMeans };
  explicit KeySummaries(KvPart& part, Kind kind = Kind::kBounds, std::int32_t stride_tokens = 1)
      : kind_(kind), stride_(stride_tokens), span_(stride_tokens), progress_(part), summaries_(part) {}
  // Before update().
  void set_units(Kind kind, std::int32_t stride_tokens, std::int32_t span_tokens) {
    kind_ = kind, stride_ = stride_tokens, span_ = span_tokens;
  }

  void update(LayerStep& step) {
    const bool bounds = kind_ == Kind::kBounds;
    step.ops(PageSummaries{step.kv, bounds ? stride_ : span_, stride_, progress_.advance(step), rows(step),
                           bounds ? PageSummaries::Kind::kBounds : PageSummaries::Kind::kMeans});
  }
  // [units, 1 or 2, head_dim] per row; valid until the next call.
  float* const* rows(const LayerStep& step) {
    return summaries_.rows(step, [&](std::int32_t r) { return units(step.kv.len[r]) * vectors() * step.kv.head_dim; });
  }
  [[nodiscard]] std::int32_t units(std::int32_t tokens) const { return ceil_div(tokens, stride_); }
  [[nodiscard]] std::int64_t bytes(const ModelShape& model, const KvRows& kv) const {
    return sum_rows(kv, [&](std::int32_t r) { return units(kv.len[r]) * vectors() * model.head_dim * model.kv_bytes; });
  }

 private:
  [[nodiscard]] std::int64_t vectors() const { return kind_ == Kind::kBounds ? 2 : 1; }

  Kind kind_;
  std::int32_t stride_, span_;
  RowProgress progress_;
  RowMemory<float> summaries_;
};

}  // namespace kvlab
