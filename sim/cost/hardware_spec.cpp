#include "sim/cost/hardware_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/file_memo.h"
#include "base/read_file.h"
#include "base/text.h"
#include "sim/cost/collectives.h"

namespace kvlab {

namespace {

const std::set<std::string> kMakers{"nvidia", "amd",     "tesla",       "geforce",  "instinct", "gpu",        "tensor",
                                    "core",   "edition", "accelerator", "graphics", "card",     "generation", "oam"};
const std::set<std::string> kMemories{"hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr6x", "gddr7", "lpddr5x"};

// "80gb", "80gib", "80g": 80; else 0.
int gigabytes_in(const std::string& word) {
  const std::size_t digits = word.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string::npos || digits > 4) return 0;
  const std::string unit = word.substr(digits);
  return unit == "gb" || unit == "gib" || unit == "g" ? std::atoi(word.c_str()) : 0;
}

std::string form_in(const std::string& word) {
  if (word == "hgx" || (word.rfind("sxm", 0) == 0 && word.size() <= 4)) return "sxm";
  return word == "pcie" || word == "nvl" ? word : "";
}

// As cards, drivers and shops write it: "NVIDIA A100-SXM4-80GB", "H100 80GB HBM3", "GeForce RTX 4090".
struct GpuName {
  std::string chip;      // lower case, no separators: "a100", "rtx4090"
  std::string form;      // "sxm", "pcie", "nvl"; "": not said
  std::string memory;    // "hbm3"; "": not said
  int gigabytes = 0;     // 0: not said
  std::string spelling;  // letters and digits, lower case
};

GpuName gpu_name(const std::string& text) {
  GpuName name;
  for (const std::string& word : lower_words(text)) {
    name.spelling += word;
    if (const int gigabytes = gigabytes_in(word); gigabytes > 0)
      name.gigabytes = gigabytes;
    else if (const std::string form = form_in(word); !form.empty())
      name.form = form;
    else if (kMemories.count(word) > 0)
      name.memory = word;
    else if (kMakers.count(word) == 0)
      name.chip += word;
  }
  return name;
}

// A card as its file describes it.
struct KnownCard {
  std::string file;
  std::vector<GpuName> names;  // by its file, its `name`, and `also`
  double bytes = 0;
  bool has_nvlink = false;
  std::set<std::string> source;  // words of it

  [[nodiscard]] std::string form() const {
    for (const GpuName& name : names)
      if (!name.form.empty()) return name.form;
    return has_nvlink ? "sxm" : "pcie";
  }
  // 48 GB are 48e9 bytes or 48 * 2^30, less what the driver keeps.
  [[nodiscard]] bool has_memory(int gigabytes) const {
    for (const GpuName& name : names)
      if (name.gigabytes > 0) return name.gigabytes == gigabytes;
    constexpr double kLeast = 0.97e9, kMost = 1.1;
    return bytes >= kLeast * gigabytes / kMost && bytes <= kMost * 1e9 * gigabytes;
  }
  [[nodiscard]] bool has_kind(const std::string& memory) const {
    const auto says = [&](const std::string& kind) { return source.count(kind) > 0; };
    return says(memory) || std::none_of(kMemories.begin(), kMemories.end(), says);
  }
  [[nodiscard]] bool is(const GpuName& wanted) const {
    if (std::none_of(names.begin(), names.end(), [&](const GpuName& own) { return own.chip == wanted.chip; })) return false;
    return (wanted.form.empty() || wanted.form == form()) && (wanted.gigabytes == 0 || has_memory(wanted.gigabytes)) &&
           (wanted.memory.empty() || has_kind(wanted.memory));
  }
  [[nodiscard]] bool is_spelled(const GpuName& wanted) const {
    return std::any_of(names.begin(), names.end(), [&](const GpuName& own) { return own.spelling == wanted.spelling; });
  }
};

KnownCard card_of(const std::string& file) {
  const auto config = parse_config(read_file(file, "a YAML file"), file);
  Params p(config, std::make_shared<Choices>(), "hardware '" + file + "'");
  KnownCard card{file, {gpu_name(std::filesystem::path(file).stem().string())}, 0, p.has("nvlink_bytes_per_s"), {}};
  if (const std::string name = p.text("name", "", "the card"); !name.empty()) card.names.push_back(gpu_name(name));
  std::istringstream also(p.text("also", "", "other names"));
  for (std::string name; std::getline(also, name, ',');) card.names.push_back(gpu_name(name));
  card.bytes = static_cast<double>(p.optional<std::int64_t>("memory_bytes", 0, 0, std::int64_t{1} << 50, "memory"));
  for (const std::string& word : lower_words(p.text("source", "", "datasheet"))) card.source.insert(word);
  return card;
}

using Spec = HardwareSpec;
using Default = HardwareKey::Default;

constexpr double kMinRate = 1e9, kMaxRate = 1e18, kMinBytes = 1 << 20, kMaxBytes = 1LL << 50;
constexpr Default kRequired{0, nullptr, true}, kAbsent{};
constexpr Default times(double factor, const char* of) { return {factor, of}; }
constexpr Default fixed(double value) { return {value}; }

// 0: the card lacks the type.
void check_rate(const Params& p, const HardwareKey& key, double rate) {
  if (rate > 0 && rate < kMinRate)
    p.fail_at(key.key, fmt::format("'{}' = {:g} is below {:g}: rates are per second, for example 3.62e14 for 362 T per second; 0: none",
                                   key.key, rate, kMinRate));
}

void check_l2(const Params& p, const HardwareKey& key, double value) {
  constexpr std::int64_t kLeast = 16 << 10;
  const auto bytes = static_cast<std::int64_t>(value);
  if (bytes > 0 && bytes < kLeast)
    p.fail_at(key.key, fmt::format("'l2_bytes' = {} is {} bytes; {} MiB is {}; 0: not known", bytes, bytes, bytes, bytes << 20));
}

// Defaults without `of` are ours (docs/cost-model.md).
constexpr HardwareKey kKeys[] = {
    {"memory_bytes", "B", kMinBytes, kMaxBytes, kRequired, &Spec::memory_bytes, "memory that a program can allocate"},
    {"cpu_memory_bytes", "B", kMinBytes, kMaxBytes, times(2, "memory_bytes"), &Spec::cpu_memory_bytes,
     "a GPU's share of CPU memory, for KV that policies keep there"},
    {"disk_bytes", "B", kMinBytes, kMaxBytes, fixed(1e12), &Spec::disk_bytes, "a GPU's share of the disks, for KV kept there"},
    {"disk_read_bytes_per_s", "B/s", 1e6, kMaxRate, fixed(7e9), &Spec::disk_read_bytes_per_s, "a GPU's share of the disks' read bandwidth"},
    {"cpu_call_ns", "ns", 0, 1e9, fixed(10'000), &Spec::cpu_call_ns, "fixed time of a KV policy's copy from CPU memory"},
    {"disk_call_ns", "ns", 0, 1e9, fixed(45'000), &Spec::disk_call_ns, "fixed time of a KV policy's read from disk"},
    {"memory_bandwidth_bytes_per_s", "B/s", kMinRate, kMaxRate, kRequired, &Spec::memory_bytes_per_s, "peak memory bandwidth"},
    {"l2_bytes", "B", 0, 1LL << 34, kAbsent, &Spec::l2_bytes, "size of the L2 cache", check_l2},
    {"sms", "", 0, 1 << 16, kAbsent, &Spec::sms, "streaming multiprocessors; 0: not known"},
    {"fp16_flops", "1/s", kMinRate, kMaxRate, kRequired, &Spec::fp16_flops, "dense fp16 tensor FLOP/s with fp32 sums"},
    {"bf16_flops", "1/s", 0, kMaxRate, kAbsent, &Spec::bf16_flops, "dense bf16 tensor FLOP/s; 0: none, fp16 is used", check_rate},
    {"fp8_flops", "1/s", 0, kMaxRate, kAbsent, &Spec::fp8_flops, "dense fp8 tensor FLOP/s; 0: none, fp16 is used", check_rate},
    {"fp4_flops", "1/s", 0, kMaxRate, kAbsent, &Spec::fp4_flops, "dense fp4 tensor FLOP/s; 0: none, bf16 is used", check_rate},
    {"int8_ops_per_s", "1/s", 0, kMaxRate, kAbsent, &Spec::int8_ops, "dense int8 tensor operations/s; 0: none, fp16 is used", check_rate},
    {"pcie_bytes_per_s", "B/s", 1e8, kMaxRate, kRequired, &Spec::pcie_bytes_per_s, "PCIe bandwidth, one direction"},
    {"nvlink_bytes_per_s", "B/s", 1e8, kMaxRate, times(1, "pcie_bytes_per_s"), &Spec::link_bytes_per_s,
     "NVLink bandwidth, one direction; PCIe where absent"},
    {"network_bytes_per_s", "B/s", 1e6, kMaxRate, kAbsent, &Spec::network_bytes_per_s,
     "network of the card's usual machine, a GPU's share, one direction; absent: not known"},
    {"gpus_per_machine", "", 1, 1 << 20, fixed(8), &Spec::gpus_per_machine,
     "GPUs that NVLink, or a machine's PCIe, joins; larger groups use the network"},
    {"network_latency_ns", "ns", 0, 1e9, fixed(8500), &Spec::network_latency_ns, "machines wait for each other once"},
    {"link_latency_ns", "ns", 0, 1e9, fixed(5000), &Spec::link_latency_ns,
     "the ranks of a collective wait for each other once, without a table"},
    {"launch_ns", "ns", 0, 1e9, fixed(2000), &Spec::launch_ns, "fixed time of one kernel"},
    {"flops_frac", "", 0.01, 1, fixed(0.7), &Spec::flops_frac, "share of peak FLOP/s that kernels reach"},
    {"linear_floor_ns", "ns", 0, 1e6, times(1, "launch_ns"), &Spec::linear_floor_ns,
     "fixed time of a matrix product; by default launch_ns"},
    {"fp8_linear_floor_ns", "ns", 0, 1e6, times(1, "linear_floor_ns"), &Spec::fp8_linear_floor_ns,
     "fixed time of one with fp8 activations, their quantization included"},
    {"fp4_linear_floor_ns", "ns", 0, 1e6, times(1, "linear_floor_ns"), &Spec::fp4_linear_floor_ns,
     "fixed time of one with fp4 activations, their quantization included"},
    {"attention_floor_ns", "ns", 0, 1e6, times(1, "launch_ns"), &Spec::attention_floor_ns,
     "fixed time of attention of one layer; by default launch_ns"},
    {"fp8_flops_frac", "", 0.01, 1, times(1, "flops_frac"), &Spec::fp8_flops_frac, "share of peak fp8 FLOP/s that products reach"},
    {"fp4_flops_frac", "", 0.01, 1, times(1, "flops_frac"), &Spec::fp4_flops_frac, "share of peak fp4 FLOP/s that products reach"},
    {"bandwidth_frac", "", 0.01, 1, fixed(0.8), &Spec::bandwidth_frac, "share of peak bandwidth that kernels reach"},
};

// Range of a figure over another.
struct Ratio {
  const char *key, *other_key;
  double least, most;
};
// Shipped cards: 37 to 430 FLOPs per byte; CPUs: 1 to 50.
constexpr const char *kFp16 = "fp16_flops", *kMemory = "memory_bandwidth_bytes_per_s";
constexpr Ratio kRatios[] = {
    {"bf16_flops", kFp16, 1.0 / 30, 30},
    {"fp8_flops", kFp16, 1.0 / 30, 30},
    {"fp4_flops", kFp16, 1.0 / 30, 30},
    {"int8_ops_per_s", kFp16, 1.0 / 30, 30},
    {kFp16, kMemory, 0.1, 3000},
    {"pcie_bytes_per_s", kMemory, 1.0 / 2000, 2},
    {"nvlink_bytes_per_s", kMemory, 1.0 / 2000, 2},
    {"network_bytes_per_s", kMemory, 1e-6, 2},
};

double default_of(const HardwareSpec& h, const HardwareKey& key) {
  return key.absent.of == nullptr ? key.absent.value : key.absent.value * hardware_value(h, key.absent.of);
}

// Integers refuse a fraction.
template <class T>
double read_as(Params& p, const HardwareKey& key, double absent) {
  const T min = static_cast<T>(key.min), max = static_cast<T>(key.max);
  if (key.absent.is_required) return static_cast<double>(p.required<T>(key.key, min, max, key.text));
  return static_cast<double>(p.optional<T>(key.key, static_cast<T>(absent), min, max, key.text));
}

void read_hardware_keys(Params& p, HardwareSpec& h) {
  for (const HardwareKey& key : kKeys) {
    const bool is_real = std::holds_alternative<double HardwareSpec::*>(key.field);
    const double absent = default_of(h, key);
    const double value = is_real ? read_as<double>(p, key, absent) : read_as<std::int64_t>(p, key, absent);
    if (key.check != nullptr) key.check(p, key, value);
    std::visit([&](auto field) { h.*field = static_cast<std::decay_t<decltype(h.*field)>>(value); }, key.field);
  }
}

// Both optional.
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

// PREFIX_floor_ns, PREFIX_flops_frac, PREFIX_bandwidth_frac and PREFIX_passes.
void read_experts(Params& p, HardwareSpec& h) {
  constexpr double kMostPasses = 100;
  const auto read = [&](const std::string& prefix, HardwareSpec::Experts e) {
    e.floor_ns = p.optional<double>(prefix + "_floor_ns", e.floor_ns, 0, 1e6, "fixed time of the experts of one layer");
    e.flops_frac = p.optional<double>(prefix + "_flops_frac", e.flops_frac, 0.01, 1, "share of peak FLOP/s that the experts reach");
    e.bandwidth_frac = p.optional<double>(prefix + "_bandwidth_frac", e.bandwidth_frac, 0.01, 1, "share of peak bandwidth for weights");
    e.passes =
        p.optional<double>(prefix + "_passes", p.has(prefix + "_flops_frac") ? 0 : e.passes, 0, kMostPasses,
                           "times that the hidden values of a (token, expert) pair cross the memory; 0: not counted, and weights are "
                           "read while products run");
    return e;
  };
  h.experts = read("experts", {h.linear_floor_ns, h.flops_frac, h.bandwidth_frac, 0});
  h.fp8_experts = read("fp8_experts", h.experts);
  h.fp4_experts = read("fp4_experts", h.experts);
  h.unpacked_experts = read("unpacked_experts", h.experts);
  h.mxfp4_experts = read("mxfp4_experts", h.fp4_flops > 0 ? h.experts : h.unpacked_experts);
}

HardwareSpec read_card(const std::string& file) {
  const auto config = load_config(file);
  Params p(config, std::make_shared<Choices>(), "hardware '" + file + "'");
  HardwareSpec h;
  h.file = file;
  h.name = p.text("name", std::filesystem::path(file).stem().string(), "the card");
  p.text("also", "", "other names of the card, with commas between them (hardware_names.h)");
  h.source = p.text("source", "datasheet the figures come from");
  read_hardware_keys(p, h);
  h.has_nvlink = p.has("nvlink_bytes_per_s");
  h.has_peer_access = p.flag("pcie_peer_access", true, "over PCIe, GPUs read each other's memory; false: through the host alone");
  read_experts(p, h);
  read_power_and_price(p, h);
  h.collectives = std::make_shared<const CollectiveTables>(read_card_collectives(p, *config, h.name));
  for (const LintFinding& finding : check_collectives(h.collectives->tables, h.links())) throw InputError(finding.text);
  p.reject_unread();
  return h;
}

// A file, a name in `folder`, or another name of a card. Throws InputError with the cards if ambiguous.
std::string find_hardware(const std::string& name_or_path, const std::string& folder) {
  const bool is_known = is_file(name_or_path) || is_file(std::filesystem::path(folder) / (name_or_path + ".yaml"));
  std::vector<std::string> meant;
  if (!is_known && name_or_path.find(".yaml") == std::string::npos) meant = hardware_meant(name_or_path, folder);
  if (meant.size() < 2) return find_spec_file(meant.empty() ? name_or_path : meant.front(), folder, "hardware");
  std::vector<std::string> names;
  for (const std::string& file : meant) names.push_back(std::filesystem::path(file).stem().string());
  throw InputError("unknown hardware '" + name_or_path + "': neither a file nor a name in " + folder + offer_of(names));
}

}  // namespace

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

std::vector<std::string> hardware_meant(const std::string& name, const std::string& folder) {
  const GpuName wanted = gpu_name(name);
  std::vector<std::string> meant;
  if (wanted.chip.empty()) return meant;
  for (const std::filesystem::path& file : yaml_files(folder)) {
    const KnownCard card = card_of(file.string());
    if (card.is_spelled(wanted)) return {file.string()};
    if (card.is(wanted)) meant.push_back(file.string());
  }
  return meant;
}

std::span<const HardwareKey> hardware_keys() { return kKeys; }

double hardware_value(const HardwareSpec& h, const char* key) {
  const auto found = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const HardwareKey& k) { return std::string_view(k.key) == key; });
  return std::visit([&](auto field) { return static_cast<double>(h.*field); }, found->field);
}

std::vector<std::string> hardware_remarks(const HardwareSpec& h) {
  std::vector<std::string> remarks;
  for (const Ratio& r : kRatios) {
    const double value = hardware_value(h, r.key), other = hardware_value(h, r.other_key), ratio = value / other;
    if (value == 0 || (ratio >= r.least && ratio <= r.most)) continue;
    remarks.push_back(ratio < 1
                          ? fmt::format("{} = {:.4g} is {:.3g} times less than {} = {:.4g}", r.key, value, 1 / ratio, r.other_key, other)
                          : fmt::format("{} = {:.4g} is {:.3g} times {} = {:.4g}", r.key, value, ratio, r.other_key, other));
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

HardwareSpec load_hardware_spec(const std::string& name_or_path, const std::string& hardware_folder) {
  static FileMemo<HardwareSpec> known;
  const std::string file = find_hardware(name_or_path, hardware_folder);
  return *known.get(file + "\n" + profiles_folder(), [&](SeenFiles& seen) {
    seen.add(file);
    return read_card(file);
  });
}

}  // namespace kvlab
