#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/read_file.h"
#include "sim/cost/collective_files.h"
#include "sim/cost/hardware_spec.h"

namespace kvlab {

namespace {

constexpr const char* kYaml = "a YAML file";

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
  using Experts = HardwareSpec::Experts;
  const auto read = [&](const std::string& prefix, const Experts& fallback) {
    const auto key = [&](const char* rest) { return prefix + rest; };
    Experts e = fallback;
    e.floor_ns = p.optional<double>(key("_floor_ns"), e.floor_ns, 0, 1e6, "fixed time of the experts of one layer");
    e.flops_frac = p.optional<double>(key("_flops_frac"), e.flops_frac, 0.01, 1, "share of peak FLOP/s that the experts reach");
    e.bandwidth_frac = p.optional<double>(key("_bandwidth_frac"), e.bandwidth_frac, 0.01, 1, "share of peak bandwidth for weights");
    e.passes =
        p.optional<double>(key("_passes"), p.has(key("_flops_frac")) ? 0 : e.passes, 0, kMostPasses,
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

// With the texts read.
struct ReadCard {
  std::string text;
  ConfigFile config;                                  // without its tree
  std::string collectives, tables_file, tables_text;  // collectives: the named file; "": inline or none
  HardwareSpec spec;

  // False: files have changed.
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
  p.text("also", "", "other names of the card, with commas between them (hardware_names.h)");
  h.source = p.text("source", "datasheet the figures come from");
  read_hardware_keys(p, h);
  h.has_nvlink = p.has("nvlink_bytes_per_s");
  h.has_peer_access = p.flag("pcie_peer_access", true, "over PCIe, GPUs read each other's memory; false: through the host alone");
  read_experts(p, h);
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

// Cached by process: sweeps reread few cards.
HardwareSpec load_hardware_spec(const std::string& name_or_path, const std::string& hardware_folder) {
  static std::mutex mutex;
  static std::map<std::string, ReadCard> read;
  const std::string file = find_hardware(name_or_path, hardware_folder);
  std::string text = read_file(file, kYaml);
  const std::lock_guard lock(mutex);
  const auto known = read.find(file);
  if (known != read.end() && known->second.is_current(text)) return known->second.spec;
  return read.insert_or_assign(file, read_card(file, std::move(text))).first->second.spec;
}

}  // namespace kvlab
