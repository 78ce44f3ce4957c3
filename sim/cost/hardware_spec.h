#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/picoseconds.h"
#include "sim/cost/collectives.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

inline constexpr double kPsPerSecond = 1e12;

// One GPU: model loaded without a step, and full use.
struct PowerSpec {
  double idle_w = 0, peak_w = 0;
};

// Datasheet, and what kernels reach. Keys, ranges and defaults: kKeys in hardware_spec.cpp.
struct HardwareSpec {
  std::string name, file, source;
  std::int64_t memory_bytes = 0;
  // A GPU's share of CPU memory and disks, and fixed transfer times.
  std::int64_t cpu_memory_bytes = 0, disk_bytes = 0;
  double disk_read_bytes_per_s = 0, cpu_call_ns = 0, disk_call_ns = 0;
  double memory_bytes_per_s = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t sms = 0;  // 0: not known
  double fp16_flops = 0, bf16_flops = 0, fp8_flops = 0, fp4_flops = 0,
         int8_ops = 0;             // 0: not supported
  double link_bytes_per_s = 0;     // NVLink or PCIe, one direction
  double pcie_bytes_per_s = 0;     // one direction
  double network_bytes_per_s = 0;  // 0: not known
  double link_latency_ns = 0;      // one wait between ranks
  bool has_nvlink = false;         // between all GPUs of a machine
  int gpus_per_machine = 8;
  double network_latency_ns = 0;  // one wait between machines
  bool has_peer_access = true;
  double launch_ns = 0;  // per kernel
  // Replace launch_ns.
  double linear_floor_ns = 0, fp8_linear_floor_ns = 0, fp4_linear_floor_ns = 0, attention_floor_ns = 0;
  double flops_frac = 0, fp8_flops_frac = 0, fp4_flops_frac = 0, bandwidth_frac = 0;  // of peak, reached by kernels
  // passes: memory traffic of a (token, expert) pair in hidden values; 0: not counted.
  struct Experts {
    double floor_ns = 0, flops_frac = 0, bandwidth_frac = 0, passes = 0;
  };
  // By weight type. experts: 16 bits; unpacked: below 8 bits, computed in 16.
  Experts experts, fp8_experts, fp4_experts, mxfp4_experts, unpacked_experts;

  std::optional<PowerSpec> power;        // none: not known
  std::optional<double> price_per_hour;  // per GPU, in USD; none: not known

  std::shared_ptr<const CollectiveTables> collectives = std::make_shared<const CollectiveTables>();  // measured on this card

  [[nodiscard]] LinkModel links() const {
    return {name, link_bytes_per_s, has_nvlink, has_peer_access, link_latency_ns, {gpus_per_machine, network_rate(), network_latency_ns}};
  }
  // PCIe if the network is not known.
  [[nodiscard]] double network_rate() const { return network_bytes_per_s > 0 ? network_bytes_per_s : pcie_bytes_per_s; }
  // vLLM's rule for defaults: 70 GiB or more, no A100.
  [[nodiscard]] bool is_large() const;
  [[nodiscard]] double peak_flops(Dtype dtype) const;
  [[nodiscard]] double reached_flops(Dtype dtype) const;
  [[nodiscard]] double linear_floor(Dtype dtype) const;
  [[nodiscard]] const Experts& experts_in(const WeightFormat& format, bool is_mxfp4) const;
};

// Figures that do not fit the others.
std::vector<std::string> hardware_remarks(const HardwareSpec& h);

std::string likely_cause_of(const HardwareSpec& h);

// File, or name in `hardware_folder`. Throws InputError with file:line:column.
HardwareSpec load_hardware_spec(const std::string& name_or_path, const std::string& hardware_folder);

// Files in `folder` of cards that the name may mean. A form or size in the name never means another's.
std::vector<std::string> hardware_meant(const std::string& name, const std::string& folder);

class Params;

// Shared by the reader, the remarks on odd figures and the table in profiles/README.md.
struct HardwareKey {
  // `of`: times the value of that key, read earlier.
  struct Default {
    double value = 0;
    const char* of = nullptr;
    bool is_required = false;
  };
  const char* key;
  const char* unit;  // "": a count or a share
  double min, max;   // of a given value
  Default absent;
  std::variant<std::int64_t HardwareSpec::*, int HardwareSpec::*, double HardwareSpec::*> field;
  const char* text;
  void (*check)(const Params& p, const HardwareKey& key, double value) = nullptr;  // throws InputError with a place
};

// In the order of reading.
std::span<const HardwareKey> hardware_keys();
double hardware_value(const HardwareSpec& h, const char* key);

// By engine version. 0 if no engine is named.
struct EngineTimes {
  EngineName engine;
  std::string basis;  // "vllm 0.12.0 (0.6.0 of FILE)", or ""

  // CPU time to plan, prepare inputs, launch and handle output. With `overlaps` only the excess over the previous step's device time
  // counts.
  struct Host {
    Picoseconds step{}, sequence{};  // sequence: per request
    bool overlaps = true;
  } host;

  // Small kernels and gaps outside the model's operations.
  struct Device {
    Picoseconds step{}, sequence{};             // sequence: per row with logits
    Picoseconds layer{}, qk_norm{}, experts{};  // per layer; extra with query-key norm, experts
  } device;

  [[nodiscard]] bool is_known() const { return !basis.empty(); }
  [[nodiscard]] Picoseconds host_of(std::int64_t requests) const { return host.step + host.sequence * requests; }
};

// Reads `engine: {vllm: {version: 0.12.0}}` with times from FOLDER/ENGINE.yaml: the newest version not above it. "nightly" is the newest.
// Throws InputError if missing.
EngineTimes read_engine_times(Params& experiment, const std::string& folder);

}  // namespace kvlab
