#include <numeric>

#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/delta_code_op.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/exponent_code/exponent_code.h"
#include "policies/kv/format/format.h"
#include "policies/kv/format/measured_share.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Later layers have coarser levels. transfer_bytes: measured, or before the first prompt (or on shapes) a bound without entropy coding.
class Cachegen final : public Format {
 public:
  explicit Cachegen(Params& p)
      : group_tokens_(p.optional<std::int32_t>("group_tokens", 10, 2, 1024, "an anchor and the tokens coded as differences to it")),
        fine_levels_(p.optional<std::int32_t>("fine_levels", 32, 4, 256, "quantization levels of differences in the first layers")),
        coarse_levels_(p.optional<std::int32_t>("coarse_levels", 16, 4, 256, "levels in the other layers")),
        fine_key_layers_(p.optional<std::int32_t>("fine_key_layers", 10, 0, 1024, "first layers with fine levels for K")),
        fine_value_layers_(p.optional<std::int32_t>("fine_value_layers", 2, 0, 1024, "first layers with fine levels for V")) {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override {
    return (layer < fine_key_layers_ ? 1 : 0) + (layer < fine_value_layers_ ? 2 : 0);
  }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void store(LayerStep& step) override {
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    std::int32_t* const bytes = per_row(step, [&](std::int32_t r) {
      return step.ops.computes() ? 0 : static_cast<std::int32_t>(bound(step.layer, keys.entries(r), step.kv.head_dim));
    });
    step.ops(DeltaCode{keys, group_tokens_, levels(step.layer, false), bytes});
    step.ops(DeltaCode{keys.of_values(), group_tokens_, levels(step.layer, true), bytes});
    step.ops.settle("cachegen_bytes", step.layer, {bytes, static_cast<std::size_t>(step.kv.num_rows)});
    measured_.add(step.layer, std::accumulate(bytes, bytes + step.kv.num_rows, std::int64_t{0}), 2 * keys.dense_bytes());
  }

  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
  [[nodiscard]] std::int64_t transfer_bytes(const ModelShape& m, std::int32_t layer, std::int32_t tokens) const override {
    return measured_.of(layer, row_bytes(m, layer, tokens));
  }

 private:
  [[nodiscard]] std::int32_t levels(std::int32_t layer, bool values) const {
    return layer < (values ? fine_value_layers_ : fine_key_layers_) ? fine_levels_ : coarse_levels_;
  }
  [[nodiscard]] std::int64_t bound(std::int32_t layer, std::int32_t tokens, std::int32_t head_dim) const {
    return delta_code_bound(tokens, head_dim, group_tokens_, levels(layer, false)) +
           delta_code_bound(tokens, head_dim, group_tokens_, levels(layer, true));
  }

  std::int32_t group_tokens_, fine_levels_, coarse_levels_, fine_key_layers_, fine_value_layers_;
  DueTokens due_{*this, {0, 1, false, true}};
  MeasuredShare measured_{5.0 / 16};
};

KVLAB_REGISTER(Format, Cachegen, "cachegen", "K and V as they come back from an entropy-coded transfer; dense on the GPU",
               "CacheGen: Liu et al. 2023, arXiv:2310.07240, section 5");

// The paper codes weights. Ours: a table per layer, K or V and piece; 64-token blocks per head. Sizes are measured; at first 11 of 16 bits.
class Dfloat11 final : public Format {
 public:
  explicit Dfloat11(Params&) {}

  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void store(LayerStep& step) override {
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    const std::int64_t d = step.kv.head_dim;
    std::int32_t* const bytes = per_row(
        step, [&](std::int32_t r) { return step.ops.computes() ? 0 : static_cast<std::int32_t>((2 * 11 * d * keys.entries(r) + 7) / 8); });
    encode(step, keys, bytes);
    encode(step, keys.of_values(), bytes);
    step.ops.settle("dfloat11_bytes", step.layer, {bytes, static_cast<std::size_t>(step.kv.num_rows)});
    measured_.add(step.layer, std::accumulate(bytes, bytes + step.kv.num_rows, std::int64_t{0}), 4 * d * keys.total());
  }

  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t layer, std::int32_t tokens) const override {
    const std::int64_t coded = due_.rule().encoded(tokens), d = m.head_dim;
    return (coded > 0 ? measured_.of(layer, 4 * coded * d) : 0) + 2 * (tokens - coded) * d * m.kv_bytes;
  }

 private:
  static void encode(LayerStep& step, const ListedTokens& tokens, std::int32_t* bytes) {
    auto* const packed = reinterpret_cast<std::uint8_t*>(step.ops.ints((most_exponent_bytes(tokens) + 3) / 4));
    auto* const lengths = reinterpret_cast<std::uint8_t*>(step.ops.ints(std::int64_t{kExponentTable} / 4 * step.kv.num_sequences()));
    std::int64_t* const begin = step.ops.host_longs(step.kv.num_rows);
    std::int64_t* const end = step.ops.host_longs(step.kv.num_rows);
    ExponentCode code{tokens, bytes, packed, lengths, begin, end};
    step.ops(code);
    code.unpacks = true;
    step.decode(code);
  }

  DueTokens due_{*this, {0, kExponentBlock}};
  MeasuredShare measured_{11.0 / 16};
};

KVLAB_REGISTER(Format, Dfloat11, "dfloat11", "bf16 K and V without loss, exponents in a Huffman code",
               "DFloat11: Zhang et al. 2025, arXiv:2504.11651, section 2");

}  // namespace

}  // namespace kvlab
