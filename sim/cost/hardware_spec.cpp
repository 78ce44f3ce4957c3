#include "sim/cost/hardware_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "base/params.h"
#include "base/read_file.h"
#include "base/spec_file.h"
#include "sim/cost/collective_files.h"

namespace kvlab {

namespace {

// Defaults of ours, not of a datasheet; docs/cost-model.md says where they come from.
constexpr double kFlopsFrac = 0.7, kBandwidthFrac = 0.8, kLaunchNs = 2000, kLinkLatencyNs = 5000;
constexpr std::int64_t kCpuMemoryPerByte = 2, kDiskBytes = 1'000'000'000'000;
constexpr double kDiskReadBytesPerS = 7e9, kCpuCallNs = 10'000, kDiskCallNs = 45'000;
constexpr double kMinRate = 1e9, kMaxRate = 1e18;
constexpr const char* kYaml = "a YAML file";

// A rate that the card may lack. 0 or absent: it does.
double optional_rate(Params& p, const char* key, const char* meaning, const char* instead = "fp16") {
  const double rate = p.optional<double>(key, 0, 0, kMaxRate, fmt::format("{}; 0: none, {} is used", meaning, instead));
  if (rate > 0 && rate < kMinRate)
    p.fail_at(key, fmt::format("'{}' = {:g} is below {:g}: rates are per second, for example 3.62e14 for 362 T per second; 0: none", key,
                               rate, kMinRate));
  return rate;
}

// Reads `power` and `price_per_hour`, which a file may lack.
void read_power_and_price(Params& p, HardwareSpec& h) {
  constexpr double kMostWatts = 1e5, kMostDollars = 1e6;
  Params power = p.optional_child("power", "power");
  if (p.has("power")) {
    PowerSpec spec;
    spec.idle_w = power.required<double>("idle_w", 0, kMostWatts, "watts of the GPU with a model loaded while no step runs");
    spec.peak_w = power.required<double>("peak_w", 1, kMostWatts, "watts of the GPU at full use: the datasheet's TDP");
    if (spec.peak_w < spec.idle_w)
      power.fail_at("peak_w", fmt::format("'peak_w' = {:g} is below 'idle_w' = {:g}: give the datasheet's TDP as 'peak_w'", spec.peak_w,
                                          spec.idle_w));
    h.power = spec;
  }
  power.reject_unread();
  if (!p.has("price_per_hour")) return;
  h.price_per_hour = p.optional<double>("price_per_hour", 0, 0, kMostDollars, "USD for an hour of one GPU");
}

// A figure over another of the card, and between which ratios cards are.
struct Ratio {
  const char* key;
  double value;
  const char* other_key;
  double other;
  double least, most;
};

}  // namespace

std::vector<std::string> hardware_remarks(const HardwareSpec& h) {
  // Among shipped cards: other types 1 to 8 times fp16, 37 to 430 FLOPs per byte, memory 8 to 130 times PCIe. CPUs have 1 to 50 FLOPs per
  // byte.
  const Ratio ratios[] = {
      {"bf16_flops", h.bf16_flops, "fp16_flops", h.fp16_flops, 1.0 / 30, 30},
      {"fp8_flops", h.fp8_flops, "fp16_flops", h.fp16_flops, 1.0 / 30, 30},
      {"fp4_flops", h.fp4_flops, "fp16_flops", h.fp16_flops, 1.0 / 30, 30},
      {"int8_ops_per_s", h.int8_ops, "fp16_flops", h.fp16_flops, 1.0 / 30, 30},
      {"fp16_flops", h.fp16_flops, "memory_bandwidth_bytes_per_s", h.memory_bytes_per_s, 0.1, 3000},
      {"pcie_bytes_per_s", h.pcie_bytes_per_s, "memory_bandwidth_bytes_per_s", h.memory_bytes_per_s, 1.0 / 2000, 2},
      {"nvlink_bytes_per_s", h.link_bytes_per_s, "memory_bandwidth_bytes_per_s", h.memory_bytes_per_s, 1.0 / 2000, 2},
      {"network_bytes_per_s", h.network_bytes_per_s, "memory_bandwidth_bytes_per_s", h.memory_bytes_per_s, 1e-6, 2},
  };
  std::vector<std::string> remarks;
  for (const Ratio& r : ratios) {
    const double ratio = r.value / r.other;
    if (r.value == 0 || (ratio >= r.least && ratio <= r.most)) continue;
    remarks.push_back(
        ratio < 1 ? fmt::format("{} = {:.4g} is {:.3g} times less than {} = {:.4g}", r.key, r.value, 1 / ratio, r.other_key, r.other)
                  : fmt::format("{} = {:.4g} is {:.3g} times {} = {:.4g}", r.key, r.value, ratio, r.other_key, r.other));
  }
  constexpr double kLongLaunchNs = 1e6, kLongWaitNs = 1e7;
  if (h.launch_ns > kLongLaunchNs)
    remarks.push_back(fmt::format("launch_ns = {:.4g} is {:.3g} ms for each kernel", h.launch_ns, h.launch_ns * 1e-6));
  if (h.link_latency_ns > kLongWaitNs)
    remarks.push_back(fmt::format("link_latency_ns = {:.4g} is {:.3g} ms for each wait", h.link_latency_ns, h.link_latency_ns * 1e-6));
  return remarks;
}

std::string likely_cause_of(const HardwareSpec& h) {
  const std::vector<std::string> remarks = hardware_remarks(h);
  if (!remarks.empty()) return fmt::format("the likely cause is in {}: {}", h.file, remarks.front());
  return fmt::format("check fp16_flops = {:.4g} and memory_bandwidth_bytes_per_s = {:.4g} in {}", h.fp16_flops, h.memory_bytes_per_s,
                     h.file);
}

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
  const bool is_fp4 = fp4_flops > 0 && (is_mxfp4 || format.share[static_cast<std::size_t>(Dtype::kFp4)] > 0);
  return format.bits >= kByte || is_fp4 ? experts : unpacked_experts;
}

bool HardwareSpec::is_large() const {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return memory_bytes >= std::int64_t{70} << 30 && lower.find("a100") == std::string::npos;
}

namespace {

// A hardware file that was read, and the texts it was read from.
struct ReadCard {
  std::string text;
  ConfigFile config;                                  // without its tree
  std::string collectives, tables_file, tables_text;  // collectives: as the file names the tables' file; "": in place, or none
  HardwareSpec spec;

  // False: the files are others than those that were read.
  [[nodiscard]] bool is_current(const std::string& text_now) const {
    if (text != text_now) return false;
    return collectives.empty() ||
           (find_card_collectives(config, collectives) == tables_file && read_file(tables_file, kYaml) == tables_text);
  }
};

ReadCard read_card(const std::string& file, std::string text) {
  const auto config = parse_config(text, file);
  Params p(config, std::make_shared<Choices>(), "hardware '" + file + "'");
  HardwareSpec h;
  h.file = file;
  h.name = p.text("name", std::filesystem::path(file).stem().string(), "the card");
  h.source = p.text("source", "datasheet the figures come from");
  h.memory_bytes = p.required<std::int64_t>("memory_bytes", 1 << 20, std::int64_t{1} << 50, "memory that a program can allocate");
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
  h.cpu_memory_bytes = p.optional<std::int64_t>("cpu_memory_bytes", kCpuMemoryPerByte * h.memory_bytes, 1 << 20, kMaxBytes,
                                                "a GPU's share of CPU memory, for KV that policies keep there");
  h.disk_bytes = p.optional<std::int64_t>("disk_bytes", kDiskBytes, 1 << 20, kMaxBytes, "a GPU's share of the disks, for KV kept there");
  h.disk_read_bytes_per_s =
      p.optional<double>("disk_read_bytes_per_s", kDiskReadBytesPerS, 1e6, kMaxRate, "a GPU's share of the disks' read bandwidth");
  h.cpu_call_ns = p.optional<double>("cpu_call_ns", kCpuCallNs, 0, 1e9, "fixed time of a KV policy's copy from CPU memory");
  h.disk_call_ns = p.optional<double>("disk_call_ns", kDiskCallNs, 0, 1e9, "fixed time of a KV policy's read from disk");
  h.memory_bytes_per_s = p.required<double>("memory_bandwidth_bytes_per_s", kMinRate, kMaxRate, "peak memory bandwidth");
  h.l2_bytes = p.optional<std::int64_t>("l2_bytes", 0, 0, std::int64_t{1} << 40, "size of the L2 cache");
  h.sms = p.optional<std::int64_t>("sms", 0, 0, 1 << 16, "streaming multiprocessors; 0: not known");
  h.fp16_flops = p.required<double>("fp16_flops", kMinRate, kMaxRate, "dense fp16 tensor FLOP/s with fp32 sums");
  h.bf16_flops = optional_rate(p, "bf16_flops", "dense bf16 tensor FLOP/s");
  h.fp8_flops = optional_rate(p, "fp8_flops", "dense fp8 tensor FLOP/s");
  h.fp4_flops = optional_rate(p, "fp4_flops", "dense fp4 tensor FLOP/s", "bf16");
  h.int8_ops = optional_rate(p, "int8_ops_per_s", "dense int8 tensor operations/s");
  h.pcie_bytes_per_s = p.required<double>("pcie_bytes_per_s", 1e8, kMaxRate, "PCIe bandwidth, one direction");
  h.link_bytes_per_s =
      p.optional<double>("nvlink_bytes_per_s", h.pcie_bytes_per_s, 1e8, kMaxRate, "NVLink bandwidth, one direction; PCIe where absent");
  h.has_nvlink = p.has("nvlink_bytes_per_s");
  h.network_bytes_per_s = p.optional<double>("network_bytes_per_s", 0, 1e6, kMaxRate,
                                             "network of the card's usual machine, a GPU's share, one direction; absent: not known");
  h.has_peer_access = p.flag("pcie_peer_access", true, "over PCIe, GPUs read each other's memory; false: through the host alone");
  h.link_latency_ns =
      p.optional<double>("link_latency_ns", kLinkLatencyNs, 0, 1e9, "the ranks of a collective wait for each other once, without a table");
  h.launch_ns = p.optional<double>("launch_ns", kLaunchNs, 0, 1e9, "fixed time of one kernel");
  h.flops_frac = p.optional<double>("flops_frac", kFlopsFrac, 0.01, 1, "share of peak FLOP/s that kernels reach");
  const auto floor_of = [&](const char* key, double fallback, const char* meaning) {
    return p.optional<double>(key, fallback, 0, 1e6, std::string("fixed time of ") + meaning);
  };
  h.linear_floor_ns = floor_of("linear_floor_ns", h.launch_ns, "a matrix product; by default launch_ns");
  h.fp8_linear_floor_ns = floor_of("fp8_linear_floor_ns", h.linear_floor_ns, "one with fp8 activations, their quantization included");
  h.fp4_linear_floor_ns = floor_of("fp4_linear_floor_ns", h.linear_floor_ns, "one with fp4 activations, their quantization included");
  h.attention_floor_ns = floor_of("attention_floor_ns", h.launch_ns, "attention of one layer; by default launch_ns");
  h.fp8_flops_frac = p.optional<double>("fp8_flops_frac", h.flops_frac, 0.01, 1, "share of peak fp8 FLOP/s that products reach");
  h.fp4_flops_frac = p.optional<double>("fp4_flops_frac", h.flops_frac, 0.01, 1, "share of peak fp4 FLOP/s that products reach");
  h.experts.floor_ns = floor_of("experts_floor_ns", h.linear_floor_ns, "the experts of one layer; by default linear_floor_ns");
  h.experts.flops_frac = p.optional<double>("experts_flops_frac", h.flops_frac, 0.01, 1, "share of peak FLOP/s that the experts reach");
  h.unpacked_experts.floor_ns =
      floor_of("unpacked_experts_floor_ns", h.experts.floor_ns, "experts whose weights are below 8 bits and are computed in 16");
  h.unpacked_experts.flops_frac =
      p.optional<double>("unpacked_experts_flops_frac", h.experts.flops_frac, 0.01, 1, "share of peak FLOP/s that these reach");
  h.bandwidth_frac = p.optional<double>("bandwidth_frac", kBandwidthFrac, 0.01, 1, "share of peak bandwidth that kernels reach");
  read_power_and_price(p, h);
  CardCollectives collectives = read_card_collectives(p, *config, h.name);
  h.collectives = std::make_shared<const CollectiveTables>(std::move(collectives.tables));
  for (const CollectiveFinding& finding : check_collectives(h.collectives->tables, h.links())) throw InputError(finding.text);
  p.reject_unread();
  ReadCard card{std::move(text), {config->name, {}, {}, config->folders}, std::move(collectives.named), "", "", std::move(h)};
  if (card.collectives.empty()) return card;
  card.tables_file = find_card_collectives(card.config, card.collectives);
  card.tables_text = read_file(card.tables_file, kYaml);
  return card;
}

}  // namespace

// A sweep reads the same few cards for each of its runs: this process keeps those that it has read.
HardwareSpec load_hardware_spec(const std::string& name_or_path, const std::string& hardware_folder) {
  static std::mutex mutex;
  static std::map<std::string, ReadCard> read;
  const std::string file = find_spec_file(name_or_path, hardware_folder, "hardware");
  std::string text = read_file(file, kYaml);
  const std::lock_guard lock(mutex);
  const auto known = read.find(file);
  if (known != read.end() && known->second.is_current(text)) return known->second.spec;
  return read.insert_or_assign(file, read_card(file, std::move(text))).first->second.spec;
}

}  // namespace kvlab
