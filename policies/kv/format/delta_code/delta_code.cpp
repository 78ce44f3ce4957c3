#include "policies/kv/format/delta_code/delta_code.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/ceil_div.h"
#include "kernels/storage/cast/stored_type.h"

namespace kvlab {

namespace {

constexpr std::int32_t kAnchorLevels = 256;

// x [n] is decoded, symbol [n] the code; levels - 1 codes from -(levels / 2 - 1) on.
void code_token(float* x, std::int32_t n, std::int32_t levels, std::int32_t* symbol) {
  float largest = 0.0F;
  for (std::int32_t c = 0; c < n; ++c) largest = std::max(largest, std::isnan(x[c]) ? 0.0F : std::fabs(x[c]));
  const std::int32_t largest_code = levels / 2 - 1;
  const auto most = static_cast<float>(largest_code);
  const float scale = from_stored(StoredType::kFp16, to_stored(StoredType::kFp16, largest)) / most;
  for (std::int32_t c = 0; c < n; ++c) {
    const float code = scale > 0.0F && !std::isnan(x[c]) ? std::clamp(std::nearbyint(x[c] / scale), -most, most) : 0.0F;
    symbol[c] = static_cast<std::int32_t>(code + most);
    x[c] = code * scale;
  }
}

void code_row(const DeltaCode& a, std::int32_t row) {
  const std::int32_t d = a.tokens.kv.head_dim, tokens = a.tokens.count(row);
  std::vector<std::vector<std::int32_t>> counts(static_cast<std::size_t>(d), std::vector<std::int32_t>(static_cast<std::size_t>(a.levels)));
  std::vector<std::int32_t> symbol(static_cast<std::size_t>(d));
  std::vector<float> difference(static_cast<std::size_t>(d));
  const float* anchor = nullptr;
  std::int64_t raw = 0;
  for (std::int32_t i = 0; i < tokens; ++i) {
    float* const x = a.tokens.at(row, i);
    raw += 2;
    if (i % a.group_tokens == 0) {
      code_token(x, d, kAnchorLevels, symbol.data());
      anchor = x;
      raw += d;
      continue;
    }
    for (std::int32_t c = 0; c < d; ++c) difference[static_cast<std::size_t>(c)] = x[c] - anchor[c];
    code_token(difference.data(), d, a.levels, symbol.data());
    for (std::int32_t c = 0; c < d; ++c) {
      x[c] = anchor[c] + difference[static_cast<std::size_t>(c)];
      ++counts[static_cast<std::size_t>(c)][static_cast<std::size_t>(symbol[static_cast<std::size_t>(c)])];
    }
  }
  double bits = 0;
  for (const auto& channel : counts) bits += entropy_bits(channel);
  a.bytes[row] += static_cast<std::int32_t>(raw + static_cast<std::int64_t>(std::ceil(bits / 8)));
}

}  // namespace

double entropy_bits(std::span<const std::int32_t> counts) {
  double total = 0, bits = 0;
  for (const std::int32_t n : counts) total += n;
  for (const std::int32_t n : counts)
    if (n > 0) bits -= n * std::log2(n / total);
  return bits;
}

std::int64_t delta_code_bound(std::int64_t tokens, std::int64_t head_dim, std::int32_t group_tokens, std::int32_t levels) {
  const std::int64_t anchors = ceil_div(tokens, group_tokens);
  const auto bits = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint32_t>(levels - 1)));
  return 2 * tokens + anchors * head_dim + ((tokens - anchors) * head_dim * bits + 7) / 8;
}

OpCall call(const DeltaCode& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim;
  std::int64_t bound = 0;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) bound += delta_code_bound(a.tokens.entries(r), d, a.group_tokens, a.levels);
  return {.op = "delta_code",
          .rows = a.tokens.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = a.tokens.dense_bytes() + a.tokens.list_bytes() + bound,
          .flops = 10 * n * d};
}
KVLAB_WITHOUT_CUDA(DeltaCode)

void run_cpu(const DeltaCode& a) {
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r)
    if (a.tokens.entries(r) > 0) code_row(a, r);
}

}  // namespace kvlab
