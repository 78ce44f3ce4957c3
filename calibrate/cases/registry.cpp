#include <algorithm>

#include "calibrate/cases/kernel_case.h"

namespace kvlab {

Rotation cold_rotation(const TimedDevice& device) {
  constexpr std::int64_t kMostOnCpu = std::int64_t{512} << 20;
  const std::int64_t bytes = 3 * device.cache_bytes();
  return {device.kind() == DeviceKind::kCpu ? std::min(bytes, kMostOnCpu) : bytes};
}

std::string KernelFamily::case_name(const Shape& shape) const {
  std::string name = op + "/" + format + "/";
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) name += "_";
    name += axes[i].second + std::to_string(shape.at(axes[i].first));
  }
  return name;
}

const std::vector<KernelFamily>& kernel_families() {
  static const std::vector<KernelFamily> all = [] {
    std::vector<KernelFamily> families;
    add_model_cases(families);
    add_attention_cases(families);
    add_score_cases(families);
    add_selection_cases(families);
    add_format_cases(families);
    add_unpack_cases(families);
    add_model_cuda_cases(families);
    add_step_cuda_cases(families);
    add_attention_cuda_cases(families);
    add_transfer_cuda_cases(families);
    return families;
  }();
  return all;
}

const KernelFamily* find_family(DeviceKind device, const std::string& op, const std::string& format) {
  const auto& all = kernel_families();
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const KernelFamily& f) { return f.device == device && f.op == op && f.format == format; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace kvlab
