#include "policies/kv/selector/key_summaries.h"

#include "base/ceil_div.h"
#include "kernels/select/page_summaries_op.h"

namespace kvlab {

void KeySummaries::update(LayerStep& step) {
  const std::int32_t* const from = progress_.advance(step);
  const bool bounds = kind_ == Kind::kBounds;
  step.ops(PageSummaries{step.kv, bounds ? stride_ : span_, stride_, from, rows(step),
                         bounds ? PageSummaries::Kind::kBounds : PageSummaries::Kind::kMeans});
}

float* const* KeySummaries::rows(const LayerStep& step) {
  return summaries_.rows(step, [&](std::int32_t r) { return units(step.kv.len[r]) * vectors() * step.kv.head_dim; });
}

std::int32_t KeySummaries::units(std::int32_t tokens) const { return ceil_div(tokens, stride_); }

std::int64_t KeySummaries::bytes(const ModelShape& model, const KvRows& kv) const {
  std::int64_t bytes = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) bytes += units(kv.len[r]) * vectors() * model.head_dim * model.kv_bytes;
  return bytes;
}

}  // namespace kvlab
