#include "sim/cost/hardware_spec.h"

#include <filesystem>

#include "base/params.h"
#include "base/spec_file.h"

namespace kvlab {

namespace {

// Defaults of ours, not of a datasheet; docs/cost-model.md says where they come from.
constexpr double kFlopsFrac = 0.7, kBandwidthFrac = 0.8, kLaunchNs = 2000, kLinkLatencyNs = 5000;
constexpr double kMaxRate = 1e18;

}  // namespace

double HardwareSpec::peak_flops(Dtype dtype) const {
  switch (dtype) {
    case Dtype::kBf16:
      return bf16_flops > 0 ? bf16_flops : fp16_flops;
    case Dtype::kFp8:
      return fp8_flops > 0 ? fp8_flops : fp16_flops;
    case Dtype::kFp4:
      return fp4_flops > 0 ? fp4_flops : peak_flops(Dtype::kBf16);
    case Dtype::kInt8:
      return int8_ops > 0 ? int8_ops : fp16_flops;
    case Dtype::kFp32:
      return fp16_flops / 2;  // TF32 runs at half the fp16 rate; older cards are slower still
    default:
      return fp16_flops;
  }
}

HardwareSpec load_hardware_spec(const std::string& name_or_path, const std::string& hardware_folder) {
  const std::string file = find_spec_file(name_or_path, hardware_folder, "hardware");
  Params p(load_config(file), std::make_shared<Choices>(), "hardware '" + file + "'");
  HardwareSpec h;
  h.file = file;
  h.name = p.text("name", std::filesystem::path(file).stem().string(), "the card");
  h.source = p.text("source", "datasheet the figures come from");
  h.memory_bytes = p.required<std::int64_t>("memory_bytes", 1 << 20, std::int64_t{1} << 50, "memory that a program can allocate");
  h.memory_bytes_per_s = p.required<double>("memory_bandwidth_bytes_per_s", 1e9, kMaxRate, "peak memory bandwidth");
  h.l2_bytes = p.optional<std::int64_t>("l2_bytes", 0, 0, std::int64_t{1} << 40, "size of the L2 cache");
  h.fp16_flops = p.required<double>("fp16_flops", 1e9, kMaxRate, "dense fp16 tensor FLOP/s with fp32 sums");
  h.bf16_flops = p.optional<double>("bf16_flops", 0, 0, kMaxRate, "dense bf16 tensor FLOP/s; 0: none, fp16 is used");
  h.fp8_flops = p.optional<double>("fp8_flops", 0, 0, kMaxRate, "dense fp8 tensor FLOP/s; 0: none, fp16 is used");
  h.fp4_flops = p.optional<double>("fp4_flops", 0, 0, kMaxRate, "dense fp4 tensor FLOP/s; 0: none, bf16 is used");
  h.int8_ops = p.optional<double>("int8_ops_per_s", 0, 0, kMaxRate, "dense int8 tensor operations/s; 0: none, fp16 is used");
  h.pcie_bytes_per_s = p.required<double>("pcie_bytes_per_s", 1e8, kMaxRate, "PCIe bandwidth, one direction");
  h.link_bytes_per_s =
      p.optional<double>("nvlink_bytes_per_s", h.pcie_bytes_per_s, 1e8, kMaxRate, "NVLink bandwidth, one direction; PCIe where absent");
  h.link_latency_ns = p.optional<double>("link_latency_ns", kLinkLatencyNs, 0, 1e9, "latency of one hop of a collective");
  h.launch_ns = p.optional<double>("launch_ns", kLaunchNs, 0, 1e9, "fixed time of one kernel");
  h.flops_frac = p.optional<double>("flops_frac", kFlopsFrac, 0.01, 1, "share of peak FLOP/s that kernels reach");
  h.bandwidth_frac = p.optional<double>("bandwidth_frac", kBandwidthFrac, 0.01, 1, "share of peak bandwidth that kernels reach");
  p.reject_unread();
  return h;
}

}  // namespace kvlab
