#include "app/results/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "app/results/run_files.h"
#include "app/results/safe_files.h"
#include "app/runs/kinds/run_kind.h"
#include "base/csv.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

// Lines "#   path: value" after the title.
std::map<std::string, std::string> defaults_in(const std::string& text) {
  constexpr std::string_view kMark = "#   ";
  std::map<std::string, std::string> found;
  const std::size_t title = text.find(kDefaultsTitle);
  if (title == std::string::npos) return found;
  std::istringstream lines(text.substr(title));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(kMark) && colon != std::string::npos)
      found[line.substr(kMark.size(), colon - kMark.size())] = line.substr(colon + 2);
  }
  return found;
}

double time_at(const CsvTable& table, std::size_t row, std::string_view column) {
  double value = 0;
  if (table.has(column)) parse_real(table.rows[row][table.at(column)], value);
  return value;
}

RequestRow row_at(const CsvTable& table, std::size_t i) {
  const auto text = [&](std::string_view column) { return table.rows[i][table.at(column)]; };
  RequestRow r;
  r.request = text("request"), r.replica = text("replica"), r.session = text("session"), r.state = text("state");
  r.arrival_ns = table.whole_if_any(i, "arrival_ns"), r.queued_ns = table.whole_if_any(i, "queued_ns");
  r.scheduled_ns = table.whole_if_any(i, "scheduled_ns"), r.first_token_ns = table.whole_if_any(i, "first_token_ns");
  r.last_token_ns = table.whole_if_any(i, "last_token_ns");
  r.prompt_tokens = table.whole(i, "prompt_tokens"), r.output_tokens = table.whole(i, "output_tokens");
  r.hit_tokens = table.whole(i, "hit_tokens"), r.preemptions = table.whole(i, "preemptions");
  r.prefill_policy_ns = time_at(table, i, "prefill_policy_ns"), r.decode_policy_ns = time_at(table, i, "decode_policy_ns");
  return r;
}

}  // namespace

const std::set<std::string>& run_file_names() {
  static const std::set<std::string> names = [] {
    std::set<std::string> all = all_run_tables();
    all.insert({"summary.csv", "resolved.yaml", "manifest.json", kFreshManifest});
    return all;
  }();
  return names;
}

std::set<std::string> RunManifest::file_names() const {
  if (!is_finished || is_numbered) return run_file_names();
  std::set<std::string> names{"manifest.json"};
  for (const auto& [name, digest] : files) names.insert(name);
  return names;
}

RunManifest read_run_manifest(const fs::path& folder) {
  RunManifest manifest;
  if (kind_of(folder / "manifest.json") != PathKind::kFile) return manifest;
  const auto root = read_json_object<nlohmann::json>(folder / "manifest.json");
  if (!root.contains("run") || !root["run"].is_string() || !root.contains("input_key")) return manifest;
  try {
    manifest.is_numbered = root.value("kvlab_run", 1) != kRunFormat;
    manifest.is_finished = manifest.is_numbered || root.value("state", "") == "finished";
    if (!manifest.is_numbered && manifest.is_finished) {
      manifest.code = root.at("code").get<CodeVersion>();
      manifest.files = root.at("files").get<std::map<std::string, std::string>>();
    }
    manifest.id = root["run"].get<std::string>();
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return manifest;
}

std::string damage_of(const fs::path& folder, const RunManifest& manifest) {
  for (const auto& [name, digest] : manifest.files) {
    const fs::path file = folder / name;
    if (kind_without_link(file) != PathKind::kFile) return name + " is missing";
    const std::string size = std::to_string(fs::file_size(file)), wanted = digest.substr(0, digest.find(' '));
    if (size != wanted) return fmt::format("{} has {} of {} bytes", name, size, wanted);
    if (digest_of_file(file) != digest) return name + " has other bytes than were written";
  }
  return "";
}

RunSettings parse_run_settings(const std::string& text) {
  RunSettings settings{YAML::Node(YAML::NodeType::Undefined), {}};
  if (text.empty()) return settings;
  try {
    settings.tree.reset(YAML::Load(text));
  } catch (const YAML::Exception&) {
    return settings;
  }
  settings.defaults = defaults_in(text);
  return settings;
}

RunSettings read_run_settings(const std::filesystem::path& run) { return parse_run_settings(read_if_there(run / "resolved.yaml")); }

YAML::Node node_at(const YAML::Node& tree, const std::string& path) {
  YAML::Node at = tree;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (!at.IsDefined() || !at.IsMap() || !std::as_const(at)[key].IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
    at.reset(std::as_const(at)[key]);
    begin = end + 1;
  }
  return at;
}

std::string name_in(const YAML::Node& node) {
  if (!node.IsDefined()) return "";
  return node.IsScalar() ? node.Scalar() : node.IsMap() && node.size() == 1 ? node.begin()->first.Scalar() : "";
}

bool RunSettings::has(const std::string& path) const { return node_at(tree, path).IsDefined(); }

std::string RunSettings::text(const std::string& path) const {
  const YAML::Node node = node_at(tree, path);
  if (node.IsDefined() && node.IsScalar()) return node.Scalar();
  const auto found = defaults.find(path);
  return found == defaults.end() ? "" : found->second;
}

std::optional<double> RequestRow::tpot_ms() const {
  if (output_tokens < 2) return std::nullopt;
  return static_cast<double>(*last_token_ns - *first_token_ns) * 1e-6 / static_cast<double>(output_tokens - 1);
}

std::vector<RequestRow> read_request_rows(const std::filesystem::path& file) {
  const CsvTable table = read_csv(file);
  std::vector<RequestRow> rows;
  rows.reserve(table.rows.size());
  for (std::size_t i = 0; i < table.rows.size(); ++i) rows.push_back(row_at(table, i));
  return rows;
}

}  // namespace kvlab
