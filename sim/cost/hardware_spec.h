#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost/collectives.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

inline constexpr double kPsPerSecond = 1e12;

// Power of one GPU in watts: with a model loaded while no step runs, and at full use.
struct PowerSpec {
  double idle_w = 0, peak_w = 0;
};

// One GPU, by its datasheet, and how much of it a good kernel reaches.
struct HardwareSpec {
  std::string name, file, source;  // source: the datasheet the figures come from
  std::int64_t memory_bytes = 0;
  // Places below the GPU's memory: a GPU's share of its machine's CPU memory and disks, and the fixed time of one transfer. CPU memory is
  // reached at pcie_bytes_per_s.
  std::int64_t cpu_memory_bytes = 0, disk_bytes = 0;
  double disk_read_bytes_per_s = 0, cpu_call_ns = 0, disk_call_ns = 0;
  double memory_bytes_per_s = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t sms = 0;  // streaming multiprocessors (compute units); 0: not known
  double fp16_flops = 0, bf16_flops = 0, fp8_flops = 0, fp4_flops = 0,
         int8_ops = 0;             // dense tensor-core rates, fp32 sums; 0: not supported
  double link_bytes_per_s = 0;     // GPU to GPU, one direction: NVLink where there is one, else PCIe
  double pcie_bytes_per_s = 0;     // GPU to host, one direction
  double network_bytes_per_s = 0;  // to other machines, a GPU's share, one direction; 0: not known
  double link_latency_ns = 0;      // of the ranks of a collective waiting for each other once
  bool has_nvlink = false;         // between all GPUs of a machine
  bool has_peer_access = true;     // over PCIe, to the memory of another GPU
  double launch_ns = 0;            // of one kernel
  // For kernels that take longer: replaces launch_ns.
  double linear_floor_ns = 0, fp8_linear_floor_ns = 0, fp4_linear_floor_ns = 0, attention_floor_ns = 0;
  double flops_frac = 0, fp8_flops_frac = 0, fp4_flops_frac = 0, bandwidth_frac = 0;  // of peak that kernels reach
  // The experts of a layer: routing, two grouped products, and their sum.
  struct Experts {
    double floor_ns = 0, flops_frac = 0;
  };
  Experts experts, unpacked_experts;  // unpacked: weights below 8 bits, which the kernel brings to 16

  std::optional<PowerSpec> power;        // none: not known
  std::optional<double> price_per_hour;  // of one GPU, in USD; none: not known

  std::shared_ptr<const CollectiveTables> collectives = std::make_shared<const CollectiveTables>();  // measured on this card

  [[nodiscard]] LinkModel links() const { return {name, link_bytes_per_s, has_nvlink, has_peer_access, link_latency_ns}; }
  // As vLLM tells GPUs apart when it chooses defaults: 70 GiB or more, and no A100.
  [[nodiscard]] bool is_large() const;
  // Peak rate of the tensor cores for activations of `dtype`; where they lack it, the rate of the type it is computed in.
  [[nodiscard]] double peak_flops(Dtype dtype) const;
  // The rate of a large product with activations of `dtype`.
  [[nodiscard]] double reached_flops(Dtype dtype) const;
  // Time of a product of no size, weights and activations in `dtype`.
  [[nodiscard]] double linear_floor(Dtype dtype) const;
  // is_mxfp4: the weights are in MXFP4 and the card multiplies them as they are.
  [[nodiscard]] const Experts& experts_in(const WeightFormat& format, bool is_mxfp4) const;
};

// Figures that do not fit the card's others, each as one clause that names the key: a unit may be wrong. Empty for real cards.
std::vector<std::string> hardware_remarks(const HardwareSpec& h);

// For an error about implausibly long steps: the first remark, or the figures that decide.
std::string likely_cause_of(const HardwareSpec& h);

// `name_or_path`: a file, or a name in `hardware_folder`. InputError with file:line:column, also for unknown keys.
HardwareSpec load_hardware_spec(const std::string& name_or_path, const std::string& hardware_folder);

}  // namespace kvlab
