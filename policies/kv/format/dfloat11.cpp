#include <numeric>

#include "kernels/storage/cast/cast.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/exponent_code/exponent_code.h"
#include "policies/kv/format/measured_share.h"
#include "policies/kv/part.h"

namespace kvlab {

namespace {

// bf16 K and V with Huffman-coded exponents, without loss. The paper codes weights; a table per layer, K or V and prompt, and blocks of
// 64 tokens per head are our own. The size depends on data: that of the prompts seen, and before the first (or on shapes alone)
// the paper's 11 of 16 bits.
class Dfloat11 final : public Format {
 public:
  explicit Dfloat11(Params&) {}

  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void forget(std::int32_t index) override { due_.forget(index); }

  void store(LayerStep& step) override {
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    const std::int64_t n = keys.total() * step.kv.head_dim;
    auto* const stored = reinterpret_cast<std::uint8_t*>(step.ops.ints((n + 1) / 2));
    step.decode(Cast{keys, StoredType::kBf16, stored});
    step.decode(Cast{keys.of_values(), StoredType::kBf16, stored});
    const std::int32_t* const completed = prompt_rows(step);
    if (completed == nullptr) return;
    measure(step, keys);
  }

  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t layer, std::int32_t tokens) const override {
    return measured_.of(layer, 4LL * tokens * m.head_dim);
  }

 private:
  // The table comes from the prompts that are complete now; other rows' tokens of this step (one each, in decode) go along.
  void measure(LayerStep& step, const ListedTokens& keys) {
    std::int32_t* const bytes = step.ops.host_ints(step.kv.num_rows);
    const std::int64_t d = step.kv.head_dim;
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      bytes[r] = step.ops.computes() ? 0 : static_cast<std::int32_t>((2 * 11 * d * keys.entries(r) + 7) / 8);
    step.ops(ExponentCode{keys, bytes});
    step.ops(ExponentCode{keys.of_values(), bytes});
    step.ops.settle("dfloat11_bytes", step.layer, {bytes, static_cast<std::size_t>(step.kv.num_rows)});
    measured_.add(step.layer, std::accumulate(bytes, bytes + step.kv.num_rows, std::int64_t{0}), 4 * d * keys.total());
  }

  DueTokens due_{{0, 1}};
  MeasuredShare measured_{11.0 / 16};
};

KVLAB_REGISTER(Format, Dfloat11, "dfloat11", "bf16 K and V without loss, exponents in a Huffman code",
               "DFloat11: Zhang et al. 2025, arXiv:2504.11651, section 2");

}  // namespace

}  // namespace kvlab
