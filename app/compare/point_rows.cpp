#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

#include "app/compare/points.h"
#include "app/results/safe_files.h"
#include "app/runs/report/known_metrics.h"
#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

std::map<std::string, PointNames::System> read_systems(Params p) {
  std::map<std::string, PointNames::System> systems;
  for (const std::string& key : p.keys()) {
    auto [hardware, own] = p.named(key, "", "a name in profiles/hardware");
    systems[key] = {hardware, own.required<int>("gpus", 1, 1 << 20, "GPUs that fast links join")};
    own.reject_unread();
  }
  return systems;
}

std::map<std::string, PointNames::Model> read_models(Params p) {
  std::map<std::string, PointNames::Model> models;
  for (const std::string& key : p.keys()) {
    auto [name, own] = p.named(key, "", "a name in profiles/models");
    models[key] = {name, own.choice("format", {"row", "own"}, 0, "whose word counts on how weights are stored") == 1};
    own.reject_unread();
  }
  return models;
}

std::map<std::string, std::string> read_texts(Params p, const std::string& meaning) {
  std::map<std::string, std::string> texts;
  for (const std::string& key : p.keys()) texts[key] = p.text(key, meaning);
  return texts;
}

constexpr std::int64_t kMaxWhole = std::int64_t{1} << 30;
// Fill, steady state, drain.
constexpr std::uint64_t kLoops = 3;

constexpr std::string_view kColumns =
    "id silicon_data_source backend model_path system precision mode isl osl gemm_quant_mode batch_size moe_quant_mode tp_size pp_size "
    "attention_dp_size moe_tp_size moe_ep_size silicon_tpot_ms";

// 128 for "...; silicon_concurrency=128; ..."; 0 if absent.
std::uint64_t stated_concurrency(const std::string& source, const std::string& place) {
  const std::string key = "silicon_concurrency=";
  const std::size_t at = source.find(key);
  std::uint64_t value = 0;
  if (at == std::string::npos) return 0;
  const char* const last = source.data() + source.size();
  const auto [end, error] = std::from_chars(source.data() + at + key.size(), last, value);
  if (error != std::errc{} || (end != last && *end != ';' && *end != ' '))
    throw InputError(fmt::format("{}: 'silicon_data_source': no whole number after '{}': '{}'", place, key, source));
  return value;
}

std::string models_of_profiles() { return profiles_folder() + "/models"; }

}  // namespace

PointNames load_point_names(const std::string& file) {
  const std::shared_ptr<const ConfigFile> config = load_config(file);
  Params p(config, std::make_shared<const Choices>(), "names of points");
  PointNames names;
  names.systems = read_systems(p.child("systems", "systems"));
  names.models = read_models(p.child("models", "models"));
  names.kv_types = read_texts(p.child("kv_cache", "kv_cache"), "type of cached keys and values");
  names.schedulers = read_texts(p.child("schedulers", "schedulers"), "scheduler of the engine's steps");
  for (const std::string& key : p.child("formats", "formats").keys()) names.formats[key] = std::as_const(config->root)["formats"][key];
  p.reject_unread();
  return names;
}

PointRows::PointRows(const std::string& file, const PointOptions& options, fs::path models_folder)
    : table_(read_csv(file)),
      options_(options),
      models_folder_(std::move(models_folder)),
      names_(load_point_names(profiles_folder() + "/points_names.yaml")) {
  for (const std::string& column : words_in(kColumns)) static_cast<void>(table_.at(column));
}

std::int64_t PointRows::whole(std::size_t row, const char* column, std::int64_t absent) const {
  const std::string& field = text(row, column);
  double value = 0;
  if (field.empty()) return absent;
  if (!parse_real(field, value) || value != std::floor(value) || value < 0 || value > static_cast<double>(kMaxWhole))
    throw InputError(fmt::format("{}:{}: '{}' is not a whole number from 0 to 2^30: '{}'", table_.file, table_.lines[row], column, field));
  return value == 0 ? absent : static_cast<std::int64_t>(value);
}

std::int64_t PointRows::length(std::size_t row, const char* column) const {
  const std::int64_t tokens = whole(row, column, 0);
  if (tokens == 0) throw PointLeftOut(fmt::format("no {}", column));
  return tokens;
}

double PointRows::tpot_ms(std::size_t row) const {
  const std::string& field = text(row, "silicon_tpot_ms");
  double value = 0;
  if (!field.empty() && !parse_real(field, value))
    throw InputError(fmt::format("{}:{}: 'silicon_tpot_ms' is not a number: '{}'", table_.file, table_.lines[row], field));
  if (value < 0) throw InputError(fmt::format("{}:{}: 'silicon_tpot_ms' is below 0: '{}'", table_.file, table_.lines[row], field));
  if (!(value > 0)) throw PointLeftOut("no TPOT was measured");
  return value;
}

std::uint64_t PointRows::concurrency(std::size_t row) const {
  const std::uint64_t stated = stated_concurrency(text(row, "silicon_data_source"), fmt::format("{}:{}", table_.file, table_.lines[row]));
  const std::uint64_t found = stated > 0 ? stated : static_cast<std::uint64_t>(whole(row, "batch_size", 0));
  if (found == 0) throw PointLeftOut("no concurrency");
  return found;
}

const PointNames::Model& PointRows::named_model(std::size_t row) const {
  const auto found = names_.models.find(text(row, "model_path"));
  if (found == names_.models.end() || !is_file(models_of_profiles() + "/" + found->second.name + ".yaml"))
    throw PointLeftOut(fmt::format("model {} is not shipped", text(row, "model_path")));
  return found->second;
}

const ModelSpec& PointRows::model(const std::string& name) {
  const auto [at, is_new] = models_.try_emplace(name);
  Loaded& loaded = at->second;
  if (is_new) {
    try {
      loaded.spec = load_model_spec(name, models_of_profiles());
    } catch (const InputError& e) {
      loaded.refusal = fmt::format("model {} is refused: {}", name, e.what());
    }
  }
  if (!loaded.spec) throw PointLeftOut(loaded.refusal);
  return *loaded.spec;
}

std::string PointRows::model_file(std::size_t row, const PointNames::Model& named, const ModelSpec& spec) {
  const std::string& of_experts = text(row, "moe_quant_mode");
  const std::string& mode = spec.is_moe() && !of_experts.empty() ? of_experts : text(row, "gemm_quant_mode");
  const auto kv = names_.kv_types.find(text(row, "precision"));
  const bool has_format = !mode.empty() && !named.has_own_format, has_kv = kv != names_.kv_types.end();
  if (!has_format && !has_kv) return named.name;
  const auto format = names_.formats.find(mode);
  if (has_format && format == names_.formats.end()) throw PointLeftOut(fmt::format("weights in {} have no quantization_config", mode));
  const std::string name = named.name + (has_format ? "-" + mode : "") + (has_kv ? "-kv-" + kv->second : "");
  const auto [variant, is_new] = variants_.try_emplace(name, fs::absolute(models_folder_ / (name + ".yaml")).string());
  if (!is_new) return variant->second;
  YAML::Node config = YAML::LoadFile(models_of_profiles() + "/" + named.name + ".yaml");
  if (has_format && format->second.IsMap()) config["quantization_config"] = YAML::Clone(format->second);
  if (has_format && !format->second.IsMap()) config.remove("quantization_config");
  if (has_kv) config["kv_cache_dtype"] = kv->second;
  fs::create_directories(models_folder_);
  replace_file(variant->second, YAML::Dump(config) + "\n");
  return variant->second;
}

std::string PointRows::parallel(std::size_t row, const ModelSpec& spec, const PointNames::System& system) const {
  const std::int64_t tp = whole(row, "tp_size", 1), pp = whole(row, "pp_size", 1), dp = whole(row, "attention_dp_size", 1),
                     moe_tp = whole(row, "moe_tp_size", 1), moe_ep = whole(row, "moe_ep_size", 1);
  if (!spec.is_moe() && dp > 1) throw PointLeftOut("data-parallel ranks of a model without experts");
  if (spec.is_moe() && moe_tp > 1 && moe_ep > 1) throw PointLeftOut("experts are cut over moe_tp_size and moe_ep_size at once");
  if (spec.is_moe() && moe_tp * moe_ep > 1 && moe_tp * moe_ep != tp * dp)
    throw PointLeftOut("moe_tp_size x moe_ep_size differs from tp_size x attention_dp_size");
  if (tp * dp * pp > system.gpus)
    throw PointLeftOut(fmt::format("more GPUs than fast links of {} join ({})", text(row, "system"), system.gpus));
  return fmt::format("{{tp: {}, pp: {}, dp: {}, ep: {}}}", tp, pp, dp, spec.is_moe() ? moe_ep : 1);
}

std::string PointRows::group(std::size_t row) const {
  const std::string& path = text(row, "model_path");
  const std::int64_t dp = whole(row, "attention_dp_size", 1);
  return fmt::format("{} tp{}{} {} {}", text(row, "system"), whole(row, "tp_size", 1), dp > 1 ? fmt::format(" dp{}", dp) : "",
                     text(row, "backend"), path.substr(path.rfind('/') + 1));
}

std::string PointRows::profile(std::size_t row) const {
  std::string yaml = options_.profile;
  std::vector<std::string> columns = table_.columns;  // longest first: one may be a prefix of another
  std::sort(columns.begin(), columns.end(), [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  for (const std::string& column : columns) {
    const std::string mark = "$" + column;
    for (std::size_t at = yaml.find(mark); at != std::string::npos; at = yaml.find(mark)) {
      const std::string& value = text(row, column.c_str());
      if (value.empty()) throw PointLeftOut(fmt::format("no {}, which the profile needs", column));
      yaml.replace(at, mark.size(), value);
    }
  }
  return yaml;
}

std::string PointRows::lengths(std::int64_t tokens) const {
  if (options_.shortest_frac >= 1) return std::to_string(tokens);
  const auto least = std::max<std::int64_t>(1, static_cast<std::int64_t>(options_.shortest_frac * static_cast<double>(tokens)));
  return fmt::format("{{uniform: {{min: {}, max: {}}}}}", least, tokens);
}

// "" if no CPU times of that engine are known.
std::string PointRows::engine(std::size_t row) const {
  const std::string& backend = text(row, "backend");
  if (!is_file(profiles_folder() + "/engines/" + backend + ".yaml")) return "";
  const std::string version = table_.has("backend_version") ? text(row, "backend_version") : "";
  return fmt::format("engine: {{{}: {{version: \"{}\"}}}}\n", backend, version);
}

PointExperiment PointRows::experiment(std::size_t row) {
  if (text(row, "mode") != "agg") throw PointLeftOut(fmt::format("mode {}", text(row, "mode")));
  const auto system = names_.systems.find(text(row, "system"));
  if (system == names_.systems.end()) throw PointLeftOut(fmt::format("system {} has no hardware file", text(row, "system")));
  const auto scheduler = names_.schedulers.find(text(row, "backend"));
  if (scheduler == names_.schedulers.end()) throw PointLeftOut(fmt::format("engine {} has no scheduler", text(row, "backend")));
  const PointNames::Model& named = named_model(row);
  const ModelSpec& spec = model(named.name);
  PointExperiment e{id(row), group(row), tpot_ms(row), concurrency(row), 0, "", ""};
  constexpr std::uint64_t kFewest = 8;
  e.requests = std::max(kFewest, kLoops * e.concurrency);
  const std::int64_t prompt = length(row, "isl"), output = length(row, "osl");
  if (output < 2) throw PointLeftOut("one output token has no TPOT");
  const std::string profile = this->profile(row);
  e.basis = profile.empty() || profile == "roofline" ? "roofline" : "tables";
  e.yaml = fmt::format(
      "name: point\nmodel: \"{}\"\nhardware: {}\n{}parallel: {}\n{}scheduler: {}\ntimeline_interval_ms: 0\n"
      "trace: {{generate: {{requests: {}, arrival: {{closed_loop: {{concurrency: {}}}}}, prompt_tokens: {}, output_tokens: {}}}}}\n",
      model_file(row, named, spec), system->second.hardware, profile.empty() ? "" : "profile: " + profile + "\n",
      parallel(row, spec, system->second), engine(row), scheduler->second, e.requests, e.concurrency, lengths(prompt), lengths(output));
  return e;
}

}  // namespace kvlab
