#include "policies/kv/format/coded_vectors.h"

#include <algorithm>
#include <cmath>

#include "kernels/storage/cast/cast.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// In fp16, of rows that complete and encode a prompt in this step.
class ExactTokens {
 public:
  ExactTokens(LayerStep& step, const ListedTokens& tokens, const std::int32_t* completed, std::int32_t count) {
    const std::int64_t* const first = prefix_sums(
        step, [&](std::int32_t r) { return completed == nullptr || completed[r] < 0 ? 0 : std::min(count, tokens.entries(r)); });
    tokens_ = {step.kv, first, nullptr, tokens.values};
    if (tokens_.total() == 0) return;
    std::int32_t* const index = step.ops.ints(tokens_.total());
    for (std::int32_t r = 0; index != nullptr && r < step.kv.num_rows; ++r)
      for (std::int64_t i = first[r]; i < first[r + 1]; ++i) index[i] = static_cast<std::int32_t>(i - first[r]);
    tokens_.index = index;
    stored_ = reinterpret_cast<std::uint8_t*>(step.ops.ints((tokens_.total() * step.kv.head_dim + 1) / 2));
    step.ops(Cast{tokens_, StoredType::kFp16, stored_});
  }
  void restore(LayerStep& step) const {
    if (tokens_.total() > 0) step.decode(Cast{tokens_, StoredType::kFp16, stored_, true});
  }

 private:
  ListedTokens tokens_;
  std::uint8_t* stored_ = nullptr;
};

}  // namespace

std::vector<float> turned_vector(const float* x, std::int32_t d, const VectorCode::Place& place, float direction) {
  std::vector<float> y(x, x + d);
  if (place.frequencies == nullptr) return y;
  for (std::int32_t c = 0; c < d / 2; ++c) {
    const float angle = static_cast<float>(place.position) * place.frequencies[c];
    const float cos = std::cos(angle), sin = direction * std::sin(angle);
    y[static_cast<std::size_t>(c)] = x[c] * cos - x[c + d / 2] * sin;
    y[static_cast<std::size_t>(c + d / 2)] = x[c + d / 2] * cos + x[c] * sin;
  }
  return y;
}

void CodedVectors::encode(LayerStep& step, const ListedTokens& tokens, const float* frequencies) {
  const std::shared_ptr<const VectorCode>& code = this->code(step.layer, tokens.values);
  if (code == nullptr) return;
  const std::int32_t* const completed = prompt_rows(step);
  VectorTables tables{nullptr, nullptr, tokens.values ? nullptr : frequencies};
  if (const std::int32_t width = code->num_parameters(step.kv.head_dim); width > 0) {
    tables.parameters = (tokens.values ? v_parameters_ : k_parameters_).lines(step, width);
    tables.line = completed;
    if (completed != nullptr) step.ops(CodeVectors{tokens, code, tables, nullptr, CodeVectors::Kind::kFit});
    tables.line = state_rows(step);
  }
  if (tokens.total() == 0) return;
  const ExactTokens exact(step, tokens, completed, exact_sinks_);
  auto* const packed = reinterpret_cast<std::uint8_t*>(step.ops.ints((tokens.total() * code->bytes(step.kv.head_dim) + 3) / 4));
  step.ops(CodeVectors{tokens, code, tables, packed});
  step.decode(CodeVectors{tokens, code, tables, packed, CodeVectors::Kind::kDecode});
  exact.restore(step);
}

void CodedVectors::store(LayerStep& step) {
  const ListedTokens keys = due_.take(step, first_word());
  const std::vector<float> frequencies = keys_turn() ? rope_frequencies(step, 0) : std::vector<float>();
  encode(step, keys, or_null(frequencies));
  encode(step, keys.of_values(), nullptr);
}

std::int64_t CodedVectors::row_bytes(const ModelShape& m, std::int32_t layer, std::int32_t tokens) const {
  const std::int64_t d = m.head_dim, encoded = due_.rule().encoded(tokens);
  std::int64_t bytes = 0;
  for (const bool values : {false, true}) {
    if (code(layer, values) == nullptr || encoded == 0) {
      bytes += tokens * d * m.kv_bytes;
      continue;
    }
    bytes += encoded * code(layer, values)->bytes(m.head_dim) + (tokens - encoded) * d * m.kv_bytes;
    bytes += 4LL * code(layer, values)->num_parameters(m.head_dim) + 2 * std::min<std::int64_t>(exact_sinks_, encoded) * d;
  }
  return bytes;
}

}  // namespace kvlab
