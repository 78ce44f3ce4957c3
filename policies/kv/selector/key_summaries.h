#pragma once

#include <cstdint>

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

  void update(LayerStep& step);
  // [units, 1 or 2, head_dim] per row; valid until the next call.
  float* const* rows(const LayerStep& step);
  [[nodiscard]] std::int32_t units(std::int32_t tokens) const;
  [[nodiscard]] std::int64_t bytes(const ModelShape& model, const KvRows& kv) const;

 private:
  [[nodiscard]] std::int64_t vectors() const { return kind_ == Kind::kBounds ? 2 : 1; }

  Kind kind_;
  std::int32_t stride_, span_;
  RowProgress progress_;
  RowMemory<float> summaries_;
};

}  // namespace kvlab
