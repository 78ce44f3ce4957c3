#include "app/export/export_format.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "app/results/safe_files.h"
#include "app/results/view.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

LatencyValues latency_values(const std::vector<RequestRow>& requests) {
  LatencyValues values;
  for (const RequestRow& r : requests) {
    if (r.is_warm_up) continue;
    if (!r.is_completed()) {
      ++values.failed;
      continue;
    }
    ++values.completed;
    values.prompt_tokens += r.prompt_tokens;
    values.output_tokens += r.output_tokens;
    values.ttft.push_back(r.ttft_ms());
    values.e2e.push_back(r.e2e_ms());
    if (const auto tpot = r.tpot_ms()) values.tpot.push_back(*tpot);
  }
  return values;
}

namespace {

void flatten(const YAML::Node& node, const std::string& path, ExportedSettings& found) {
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  if (node.IsMap())
    for (const auto& item : node) flatten(item.second, below(item.first.Scalar()), found);
  else if (node.IsSequence())
    for (std::size_t i = 0; i < node.size(); ++i) flatten(node[i], below(std::to_string(i)), found);
  else if (node.IsScalar())
    found.emplace_back(path, node.Scalar());
}

ExportedSettings settings_in(const fs::path& file) {
  ExportedSettings found;
  try {
    flatten(YAML::LoadFile(file.string()), "", found);
  } catch (const YAML::Exception& e) {
    throw InputError(file.string() + ": cannot be read: " + e.what());
  }
  return found;
}

std::string value_of(const ExportedSettings& values, const std::string& name) {
  const auto at = std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == name; });
  return at == values.end() ? "" : at->second;
}

}  // namespace

ExportedRun::ExportedRun(fs::path run, std::vector<std::pair<std::string, std::string>> labels)
    : folder(std::move(run)), id(folder.filename().string()), axes(std::move(labels)) {
  manifest = read_json_object<nlohmann::ordered_json>(folder / "manifest.json");
  const CsvTable table = read_csv(folder / "summary.csv");
  if (table.rows.empty()) throw InputError(table.file + ": has no rows");
  for (std::size_t c = 0; c < table.columns.size(); ++c) summary.emplace_back(table.columns[c], table.rows[0][c]);
  settings = settings_in(folder / "resolved.yaml");
}

std::string ExportedRun::text(const std::string& column) const { return value_of(summary, column); }

std::optional<double> ExportedRun::number(const std::string& column) const {
  double value = 0;
  return parse_real(text(column), value) ? std::optional(value) : std::nullopt;
}

std::string ExportedRun::setting(const std::string& path) const { return value_of(settings, path); }

std::vector<RequestRow> ExportedRun::requests() const {
  const fs::path file = folder / "requests.csv";
  if (kind_of(file) != PathKind::kFile)
    throw InputError(file.string() +
                     ": there is none: this kind of run serves no requests, or kept its summary only ('output: {keep: summary}')");
  double warmup_ms = 0;
  parse_real(setting("warmup_ms"), warmup_ms);
  std::vector<RequestRow> requests = read_request_rows(file);
  for (RequestRow& r : requests) r.is_warm_up = r.arrival_ns && static_cast<double>(*r.arrival_ns) < warmup_ms * 1e6;
  if (requests.empty()) throw InputError(file.string() + ": has no rows: this kind of run serves no requests");
  return requests;
}

std::vector<ExportedSample> ExportedRun::samples() const {
  std::vector<ExportedSample> samples;
  if (kind_of(folder / "timeline.csv") != PathKind::kFile) return samples;
  const CsvTable table = read_csv(folder / "timeline.csv");
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    samples.push_back({table.rows[i][table.at("replica")], table.whole(i, "time_ns"), table.whole(i, "running"), table.whole(i, "waiting"),
                       table.whole(i, "used_blocks"), table.whole(i, "cached_blocks"), table.whole(i, "free_blocks")});
  return samples;
}

ExportSource read_export_source(const fs::path& folder, const std::vector<std::string>& ids) {
  if (kind_of(folder) != PathKind::kFolder) throw InputError(folder.string() + ": no such folder; kvlab run makes one");
  ExportSource source{folder, "", {}};
  const auto manifest = read_json_object<nlohmann::json>(folder / "manifest.json");
  source.experiment = manifest.is_object() ? manifest.value("experiment", "") : "";
  if (source.experiment.empty()) source.experiment = folder.filename().string();
  const CsvTable summary = read_csv(folder / "summary.csv");
  const std::set<std::string> included = included_runs(folder);
  std::set<std::string> seen, wanted(ids.begin(), ids.end());
  std::vector<std::string> known;
  for (const auto& row : summary.rows) {
    const std::string& id = row[summary.at("run")];
    if (!seen.insert(id).second) continue;
    known.push_back(id);
    if (!ids.empty() && wanted.erase(id) == 0) continue;
    if (kind_of(folder / "runs" / id) == PathKind::kNothing && included.contains(id)) {
      ++source.num_included;
      continue;
    }
    std::vector<std::pair<std::string, std::string>> axes;
    for (std::size_t c = 1; c < summary.at("seed"); ++c) axes.emplace_back(summary.columns[c], row[c]);
    source.runs.emplace_back(folder / "runs" / id, std::move(axes));
  }
  const std::set<std::string> unknown = ids.empty() ? std::set<std::string>{} : wanted;
  if (!unknown.empty())
    throw InputError(
        fmt::format("{}: has no run '{}' in its newest sweep{}", folder.string(), *unknown.begin(), suggestion(*unknown.begin(), known)));
  if (source.runs.empty())
    throw InputError(folder.string() + (source.num_included > 0 ? ": has these runs by 'include_results': export them from their own folder"
                                                                : ": has no finished runs"));
  return source;
}

bool ExportFolder::has(const fs::path& name) const { return kind_of(folder_ / name) != PathKind::kNothing; }

fs::path ExportFolder::make(const fs::path& name) {
  const fs::path path = folder_ / name;
  if (kind_without_link(path) != PathKind::kNothing && !is_own_)
    throw InputError(path.string() + ": is there already: remove it, or choose another --out");
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) throw InputError(path.parent_path().string() + ": cannot be made: " + error.message());
  written_.push_back(path);
  return path;
}

void ExportFolder::write(const fs::path& name, std::string_view text) { replace_file(make(name), text); }

void ExportFolder::copy(const fs::path& name, const fs::path& from) {
  const fs::path path = make(name);
  std::error_code error;
  fs::copy_file(from, path, fs::copy_options::overwrite_existing, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(path, ignored);
  throw std::runtime_error(path.string() + ": cannot be written: " + error.message());
}

}  // namespace kvlab
