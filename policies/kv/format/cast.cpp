#include "kernels/storage/cast/cast.h"

#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"

namespace kvlab {

namespace {

// fp16 or bf16.
class Native final : public Format {
 public:
  explicit Native(Params&) {}
  [[nodiscard]] bool is_native() const override { return true; }
  [[nodiscard]] bool encodes() const override { return false; }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
  [[nodiscard]] bool stores_prompt_keys_alone() const override { return true; }
};

KVLAB_REGISTER(Format, Native, "native", "K and V in the model's own type", "paged KV cache: Kwon et al. 2023, arXiv:2309.06180");

// Without scales: the kv-cache-dtype of serving engines.
class CastFormat final : public Format {
 public:
  explicit CastFormat(Params& p)
      : type_(p.choice("type",
                       {{"fp16", StoredType::kFp16},
                        {"bf16", StoredType::kBf16},
                        {"fp8_e4m3", StoredType::kFp8E4M3},
                        {"fp8_e5m2", StoredType::kFp8E5M2}},
                       StoredType::kFp16, "number format of K and V")) {
    if (p.has("scale"))
      p.fail_at("scale", "'cast' has no scales: write 'format: {scaled_fp8: {scale: token}}', or head or tensor (docs/kv-policies.md)");
  }

  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void store(LayerStep& step) override {
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    const std::int64_t bytes = keys.total() * step.kv.head_dim * bytes_of(type_);
    auto* const stored = reinterpret_cast<std::uint8_t*>(step.ops.ints((bytes + 3) / 4));
    step.decode(Cast{keys, type_, stored});
    step.decode(Cast{keys.of_values(), type_, stored});
  }

  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t, std::int32_t tokens) const override {
    return 2LL * tokens * m.head_dim * bytes_of(type_);
  }

 private:
  StoredType type_;
  DueTokens due_{*this, {0, 1, true}};
};

KVLAB_REGISTER(Format, CastFormat, "cast", "K and V rounded to fp16, bf16 or fp8 as they are written",
               "fp8 formats: Micikevicius et al. 2022, arXiv:2209.05433; kv-cache-dtype of vLLM");

}  // namespace

}  // namespace kvlab
