#include "policies/kv/format/grouped.h"

#include "kernels/storage/quantize/quantize.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

std::int64_t GroupedSide::bytes(const ModelShape& m, std::int32_t tokens) const {
  const std::int32_t encoded = rule.encoded(tokens);
  return packed_bytes(codec, encoded, m.head_dim) + static_cast<std::int64_t>(tokens - encoded) * m.head_dim * m.kv_bytes;
}

void encode_groups(LayerStep& step, const ListedTokens& tokens, const GroupCodec& codec, const ChannelScales& scales) {
  if (tokens.total() == 0) return;
  auto* const packed = reinterpret_cast<std::uint8_t*>(step.ops.ints((packed_bytes(tokens, codec) + 3) / 4));
  step.ops(Quantize{tokens, codec, scales.lines, scales.row, packed});
  step.decode(Quantize{tokens, codec, scales.lines, scales.row, packed, Quantize::Mode::kWrite});
}

void Grouped::store(LayerStep& step) {
  const ChannelScales scales = key_scales(step);
  const ListedTokens keys = k_due_.take(step, first_word());
  encode_groups(step, keys, k_.codec, scales);
  encode_groups(step, v_due_.take(step, first_word()).of_values(), v_.codec, {});
}

std::int64_t Grouped::row_bytes(const ModelShape& m, std::int32_t, std::int32_t tokens) const {
  return k_.bytes(m, tokens) + v_.bytes(m, tokens) + (tokens > 0 ? scale_bytes(m) : 0);
}

}  // namespace kvlab
