#include "app/commands/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "app/claims/claim.h"
#include "app/export/export_format.h"
#include "app/runs/plan/serving_plan.h"
#include "app/runs/plan/slo.h"
#include "app/runs/sweep/experiment.h"
#include "base/config/spec_file.h"
#include "base/csv.h"
#include "base/read_file.h"
#include "base/text.h"
#include "policies/block_cache/block_cache.h"
#include "policies/dispatcher/dispatcher.h"
#include "policies/order/order.h"
#include "policies/predictor/predictor.h"
#include "policies/scheduler/scheduler.h"
#include "sim/cost/make_cost_model.h"
#include "traces/formats.h"
#include "traces/logs/log_format.h"

namespace kvlab {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

template <class Interface>
std::vector<Item> policies(const std::string& kind) {
  std::vector<Item> items;
  for (const auto& [name, entry] : Registry<Interface>::table_view()) {
    Item item{kind, name, entry.card.summary, entry.card.source, {}};
    add_parameters(entry, item);
    items.push_back(std::move(item));
  }
  return items;
}

constexpr double kGiB = 1024.0 * 1024 * 1024;
// What `fill` cannot read becomes an item with the reason.
template <class Fill>
void add_item(const char* kind, const std::string& name, std::vector<Item>& items, Fill fill) {
  Item item{kind, name, "", "", {}};
  try {
    fill(item);
  } catch (const InputError& e) {
    item = {kind, name, std::string("cannot be used: ") + e.what(), "", {}};
  }
  items.push_back(std::move(item));
}

// Fill: of an item by the path of its file.
template <class Fill>
std::vector<Item> items_of_files(const char* kind, const std::vector<fs::path>& files, Fill fill) {
  std::vector<Item> items;
  for (const fs::path& file : files) add_item(kind, file.stem().string(), items, [&](Item& item) { fill(file.string(), item); });
  return items;
}

std::vector<Item> hardware() {
  const std::string folder = profiles_folder() + "/hardware";
  return items_of_files("hardware", yaml_files(folder), [&](const std::string& file, Item& item) {
    const HardwareSpec h = load_hardware_spec(file, folder);
    if (h.power) item.facts.emplace_back("power", fmt::format("{:g} W idle, {:g} W at full use", h.power->idle_w, h.power->peak_w));
    if (h.price_per_hour) item.facts.emplace_back("price", fmt::format("{:g} USD per hour", *h.price_per_hour));
    if (h.network_bytes_per_s > 0) item.facts.emplace_back("network", fmt::format("{:g} GB/s of each GPU", h.network_bytes_per_s * 1e-9));
    for (const std::string& remark : hardware_remarks(h)) item.facts.emplace_back("remark", remark);
    item.summary = fmt::format("{}: {:.0f} GiB, {:.0f} GB/s, {:.0f} dense bf16 TFLOP/s", h.name, static_cast<double>(h.memory_bytes) / kGiB,
                               h.memory_bytes_per_s * 1e-9, h.bf16_flops * 1e-12);
    item.source = h.source;
  });
}

std::vector<Item> models() { return model_items(profiles_folder() + "/models"); }

std::vector<Item> experiments() {
  return items_of_files("experiments", experiment_files(), [](const std::string& file, Item& item) {
    const std::string text = read_if_there(file), line = text.substr(0, text.find('\n'));
    if (line.starts_with("# ")) item.summary = line.substr(2);
    item.source = file;
  });
}

std::vector<Item> claims() {
  return items_of_files("claims", claim_files(), [](const std::string& file, Item& item) {
    const Claim claim = load_claim(file);
    item.summary = fmt::format("{} against {}: {} {}", claim.system, claim.baseline, figure_text(claim.published), claim.published.text);
    item.source = claim.paper;
  });
}

std::vector<Item> systems() {
  std::vector<Item> items;
  for (const std::string& name : system_names())
    add_item("systems", name, items, [&](Item& item) {
      const SystemCard card = load_system_card(name);
      item.facts = card.parts;
      if (!card.confidence.empty()) item.facts.emplace_back("confidence", card.confidence);
      if (!card.notes.empty()) item.facts.emplace_back("notes", card.notes);
      item.summary = card.summary, item.source = card.paper;
    });
  return items;
}

std::vector<Item> slos() {
  return items_of_files("slos", yaml_files(slo_folder()), [](const std::string& file, Item& item) {
    Params p = read_slo_file(file);
    std::string limits;
    for (const char* key : {"ttft_ms", "tpot_ms", "tbt_ms", "e2e_ms"}) {
      if (!p.has(key)) continue;
      item.facts.emplace_back(key, p.inline_text(key, ""));
      limits += fmt::format("{}{} {}", limits.empty() ? "" : ", ", key, item.facts.back().second);
    }
    if (p.has("attainment"))
      item.facts.emplace_back("attainment", p.inline_text("attainment", "") +
                                                " of the requests, each limit by itself; 'search' has its own "
                                                "'attainment', of requests that meet all limits");
    item.summary = fmt::format("{}: {}", p.text("summary", "", "one line"), limits);
    item.source = p.text("source", "", "");
  });
}

struct Kind {
  const char* name;
  std::vector<Item> (*items)();
};

constexpr std::array<Kind, 15> kKinds = {{{"schedulers", [] { return policies<Scheduler>("schedulers"); }},
                                          {"orders", [] { return policies<Order>("orders"); }},
                                          {"predictors", [] { return policies<Predictor>("predictors"); }},
                                          {"dispatchers", [] { return policies<Dispatcher>("dispatchers"); }},
                                          {"systems", systems},
                                          {"block_caches", [] { return policies<BlockCache>("block_caches"); }},
                                          {"kv", kv_items},
                                          {"slos", slos},
                                          {"hardware", hardware},
                                          {"models", models},
                                          {"trace_formats", [] { return policies<TraceFormat>("trace_formats"); }},
                                          {"log_formats", [] { return policies<LogFormat>("log_formats"); }},
                                          {"export_formats", [] { return policies<ExportFormat>("export_formats"); }},
                                          {"experiments", experiments},
                                          {"claims", claims}}};

using UnitOfSuffix = std::pair<const char*, const char*>;
constexpr UnitOfSuffix kUnits[] = {{"_tokens_per_s", "tokens/s"},
                                   {"_bytes_per_s", "bytes/s"},
                                   {"_per_s", "1/s"},
                                   {"_tokens", "tokens"},
                                   {"_blocks", "blocks"},
                                   {"_bytes", "bytes"},
                                   {"_frac", "share"},
                                   {"_ns", "ns"},
                                   {"_us", "us"},
                                   {"_ms", "ms"},
                                   {"_gib", "GiB"},
                                   {"_s", "s"}};

// "; did you mean 'h200' (hardware) or 'h2o' (recipes)?"
std::string meant_items(const std::string& name) {
  std::map<std::string, std::set<std::string>> kinds_of;
  for (const Kind& kind : kKinds)
    for (const Item& item : kind.items()) kinds_of[item.name].insert(item.kind);
  std::vector<std::string> names;
  for (const auto& [known, kinds] : kinds_of) names.push_back(known);
  std::vector<std::string> meant = meant_names(name, names);
  constexpr std::size_t kShortest = 4;  // shorter names have many neighbours
  if (name.size() >= kShortest)
    for (const std::string& near : names_within(name, names, 1))
      if (std::find(meant.begin(), meant.end(), near) == meant.end()) meant.push_back(near);
  if (meant.empty()) return "; kvlab list KIND shows names";
  std::vector<std::string> shown;
  for (const std::string& one : meant) {
    const std::set<std::string>& kinds = kinds_of[one];
    const std::string kind = meant.size() > 1 ? fmt::format(" ({})", join({kinds.begin(), kinds.end()}, ", ")) : "";
    shown.push_back(fmt::format("'{}'{}", one, kind));
  }
  return "; did you mean " + join(shown, " or ") + "?";
}

// At `columns` bytes; further lines begin with `indent` blanks.
std::string wrapped(const std::string& line, std::size_t indent, std::size_t columns) {
  if (columns < indent + 20 || line.size() <= columns) return line;
  std::string text;
  for (std::size_t begin = 0, room = columns; begin < line.size(); room = columns - indent) {
    std::size_t end = std::min(begin + room, line.size());
    if (const std::size_t blank = line.rfind(' ', end); end < line.size() && blank != std::string::npos && blank > begin) end = blank;
    text += (begin == 0 ? "" : "\n" + std::string(indent, ' ')) + line.substr(begin, end - begin);
    begin = line.find_first_not_of(' ', end);
  }
  return text;
}

bool is_kv(const Item& item) { return kv_kinds().contains(item.kind); }

}  // namespace

const std::vector<std::string>& list_kinds() {
  static const std::vector<std::string> kinds = [] {
    std::vector<std::string> names;
    for (const Kind& kind : kKinds) names.emplace_back(kind.name);
    return names;
  }();
  return kinds;
}

std::string kinds_as_json() { return Json(list_kinds()).dump(2) + "\n"; }

std::vector<Item> list_items(const std::string& kind) {
  const std::string name = kind == "routers" ? "dispatchers" : kind;  // older name
  for (const Kind& known : kKinds) {
    if (name == known.name) return known.items();
  }
  throw InputError("unknown kind '" + kind + "'" + suggestion(kind, list_kinds()));
}

std::vector<Item> describe_items(const std::string& name) {
  if (is_model_path(name)) return {model_at_path(name)};
  std::vector<Item> found;
  for (const Kind& kind : kKinds)
    for (Item& item : kind.items())
      if (item.name == name) found.push_back(std::move(item));
  for (Item& item : found) add_kv_details(item);
  if (!found.empty()) return found;
  throw InputError("nothing is called '" + name + "'" + meant_items(name));
}

std::string unit_of(const std::string& key) {
  for (const auto& [suffix, unit] : kUnits) {
    if (key.ends_with(suffix)) return unit;
  }
  return "";
}

std::string items_as_text(const std::vector<Item>& items, std::size_t columns) {
  std::size_t width = 0;
  for (const Item& item : items) width = std::max(width, item.name.size());
  const bool mixed = std::any_of(items.begin(), items.end(), [&](const Item& i) { return i.kind != items.front().kind; });
  std::string text;
  for (const Item& item : items) {
    std::string line = fmt::format("{:<{}}  {}{}", item.name, width, mixed ? fmt::format("{:<9}  ", item.kind) : "", item.summary);
    if (!item.source.empty() && item.kind != "models" && item.kind != "experiments") line += fmt::format(" [{}]", item.source);
    text += wrapped(line, width + 2 + (mixed ? 11 : 0), columns) + "\n";
  }
  return text;
}

std::string items_as_json(const std::vector<Item>& items, bool with_parameters) {
  Json all = Json::array();
  for (const Item& item : items) {
    Json one = {{"name", item.name}, {"kind", item.kind}, {"summary", item.summary}, {"source", item.source}};
    if (is_kv(item)) one.update({{"hosts", item.hosts}, {"confidence", item.confidence}, {"paper", item.source}});
    for (const auto& [key, value] : item.facts)
      if (with_parameters && !one.contains(key)) one[key] = value;
    if (with_parameters) {
      one["parameters"] = Json::array();
      for (const ParamDoc& d : item.parameters) {
        one["parameters"].push_back({{"key", d.key},
                                     {"type", d.type},
                                     {"unit", unit_of(d.key)},
                                     {"range", d.range},
                                     {"default", d.fallback.empty() ? Json(nullptr) : Json(d.fallback)},
                                     {"meaning", d.meaning}});
      }
    }
    all.push_back(std::move(one));
  }
  return (with_parameters && all.size() == 1 ? all[0] : all).dump(2) + "\n";
}

std::string description_as_text(const Item& item) {
  std::string text = fmt::format("{} ({})\n  {}\n", item.name, item.kind, item.summary);
  if (!item.source.empty()) text += "  source: " + item.source + "\n";
  for (const auto& [key, value] : item.facts) text += fmt::format("  {}: {}\n", key, value);
  if (item.parameters.empty()) return text + "\n";
  std::vector<std::vector<std::string>> rows;
  for (const ParamDoc& d : item.parameters) {
    rows.push_back({"  " + d.key, d.type, unit_of(d.key), d.range, d.fallback.empty() ? "required" : d.fallback, d.meaning});
  }
  return text + text_table({"  parameter", "type", "unit", "range", "default", "meaning"}, rows) + "\n";
}

}  // namespace kvlab
