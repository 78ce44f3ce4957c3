#include "sim/cost/hardware_spec.h"

#include <array>

#include "base/text.h"

namespace kvlab {

double HardwareSpec::peak_flops(Dtype dtype) const {
  const double tf32 = fp16_flops / 2;  // older cards are slower still
  const std::array rates{fp16_flops, bf16_flops, tf32, fp8_flops, int8_ops, fp4_flops > 0 ? fp4_flops : bf16_flops};  // by Dtype
  const double rate = rates[static_cast<std::size_t>(dtype)];
  return rate > 0 ? rate : fp16_flops;
}

double HardwareSpec::reached_flops(Dtype dtype) const {
  const bool has_fp8 = dtype == Dtype::kFp8 && fp8_flops > 0, has_fp4 = dtype == Dtype::kFp4 && fp4_flops > 0;
  return peak_flops(dtype) * (has_fp8 ? fp8_flops_frac : has_fp4 ? fp4_flops_frac : flops_frac);
}

double HardwareSpec::linear_floor(Dtype dtype) const {
  if (dtype == Dtype::kFp8) return fp8_linear_floor_ns;
  return dtype == Dtype::kFp4 && fp4_flops > 0 ? fp4_linear_floor_ns : linear_floor_ns;
}

const HardwareSpec::Experts& HardwareSpec::experts_in(const WeightFormat& format, bool is_mxfp4) const {
  constexpr double kByte = 8;
  constexpr double kHalf = 0.5;
  const auto share = [&](Dtype type) { return format.share[static_cast<std::size_t>(type)]; };
  if (is_mxfp4) return mxfp4_experts;
  if (fp4_flops > 0 && share(Dtype::kFp4) > 0) return fp4_experts;
  if (format.bits < kByte) return unpacked_experts;
  return share(Dtype::kFp8) > kHalf ? fp8_experts : experts;
}

bool HardwareSpec::is_large() const { return memory_bytes >= std::int64_t{70} << 30 && lower_case(name).find("a100") == std::string::npos; }

}  // namespace kvlab
