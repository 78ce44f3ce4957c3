#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/storage/cast/cast.h"
#include "policies/kv/format/coded_vectors.h"

namespace kvlab {

namespace {

enum class ScaleOf : std::uint8_t { kToken, kHead, kTensor };

// x / scale, scale = largest |x| / largest fp8 number, in fp32: before a token's code, or the row's parameter, beyond which later numbers
// saturate.
class ScaledFp8Code final : public VectorCode {
 public:
  ScaledFp8Code(StoredType type, ScaleOf of) : type_(type), of_(of), most_(type == StoredType::kFp8E4M3 ? 448.0F : 57344.0F) {}

  [[nodiscard]] std::string_view encode_name() const override { return "scaled_fp8_encode"; }
  [[nodiscard]] std::string_view decode_name() const override { return "scaled_fp8_decode"; }
  [[nodiscard]] std::int64_t bytes(std::int32_t d) const override { return d + (of_ == ScaleOf::kToken ? kScaleBytes : 0); }
  [[nodiscard]] std::int64_t encode_flops(std::int32_t d) const override { return (of_ == ScaleOf::kToken ? 3LL : 2LL) * d; }
  [[nodiscard]] std::int64_t decode_flops(std::int32_t d) const override { return 2LL * d; }
  [[nodiscard]] std::int32_t num_parameters(std::int32_t) const override { return of_ == ScaleOf::kToken ? 0 : 1; }
  [[nodiscard]] std::int64_t fit_flops(std::int32_t d) const override { return d; }
  [[nodiscard]] bool fits_all_heads() const override { return of_ == ScaleOf::kTensor; }

  void fit(std::span<const float> x, std::int32_t, std::span<const std::int32_t>, const float*, float* parameters) const override {
    *parameters = scale_of(x);
  }
  void encode(const float* x, std::int32_t d, const Place& place, std::uint8_t* code) const override {
    const bool is_own = of_ == ScaleOf::kToken;
    const float scale = is_own ? scale_of({x, static_cast<std::size_t>(d)}) : *place.parameters;
    if (is_own) std::memcpy(code, &scale, kScaleBytes);
    std::uint8_t* const numbers = code + (is_own ? kScaleBytes : 0);
    for (std::int32_t c = 0; c < d; ++c) numbers[c] = static_cast<std::uint8_t>(to_stored(type_, x[c] / scale));
  }
  void decode(const std::uint8_t* code, std::int32_t d, const Place& place, float* x) const override {
    const bool is_own = of_ == ScaleOf::kToken;
    float scale = 0;
    if (is_own)
      std::memcpy(&scale, code, kScaleBytes);
    else
      scale = *place.parameters;
    const std::uint8_t* const numbers = code + (is_own ? kScaleBytes : 0);
    for (std::int32_t c = 0; c < d; ++c) x[c] = from_stored(type_, numbers[c]) * scale;
  }

 private:
  static constexpr std::int64_t kScaleBytes = 4;

  // 1 if all numbers are 0.
  [[nodiscard]] float scale_of(std::span<const float> x) const {
    float largest = 0;
    for (const float number : x)
      if (std::isfinite(number)) largest = std::max(largest, std::fabs(number));
    const float scale = largest / most_;
    return scale > 0 ? scale : 1.0F;
  }

  StoredType type_;
  ScaleOf of_;
  float most_;
};

// Scales per head or layer come from the complete prompt.
class ScaledFp8 final : public CodedVectors {
 public:
  explicit ScaledFp8(Params& p)
      : ScaledFp8(p.choice("type", {{"fp8_e4m3", StoredType::kFp8E4M3}, {"fp8_e5m2", StoredType::kFp8E5M2}}, StoredType::kFp8E4M3,
                           "number format of K and V"),
                  p.choice("scale", {{"token", ScaleOf::kToken}, {"head", ScaleOf::kHead}, {"tensor", ScaleOf::kTensor}}, ScaleOf::kToken,
                           "numbers with one fp32 scale, for K and for V: of a token in a KV head, a KV head, all KV heads of a layer")) {}

 private:
  ScaledFp8(StoredType type, ScaleOf of) : ScaledFp8(std::make_shared<ScaledFp8Code>(type, of), of == ScaleOf::kToken) {}
  ScaledFp8(const std::shared_ptr<const VectorCode>& code, bool at_once) : CodedVectors({code, code}, {0, 1, at_once}) {}
};

KVLAB_REGISTER(Format, ScaledFp8, "scaled_fp8", "K and V in fp8 with scales by token, KV head or layer",
               "fp8 formats: Micikevicius et al. 2022, arXiv:2209.05433; kv-cache-dtype fp8 of vLLM with scales");

}  // namespace

}  // namespace kvlab
