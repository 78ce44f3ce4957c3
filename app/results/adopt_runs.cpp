#include "app/results/adopt_runs.h"

#include <nlohmann/json.hpp>
#include <set>

#include "app/results/run_files.h"
#include "app/results/run_manifest.h"
#include "app/results/safe_files.h"
#include "base/json_text.h"
#include "base/read_file.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr const char* kResolved = "resolved.yaml";

bool is_complete(const fs::path& run, const IsCurrent& is_current) {
  if (kind_of(run) != PathKind::kFolder) return false;
  const RunManifest manifest = read_run_manifest(run);
  if (!manifest.is_ours() || manifest.is_numbered || !manifest.is_finished || !damage_of(run, manifest).empty()) return false;
  return !is_current || is_current(run.filename().string(), manifest.code);
}

std::string defaults_of(const std::string& resolved) {
  const std::size_t at = resolved.find(kDefaultsTitle);
  return at == std::string::npos ? "" : resolved.substr(at);
}

void copy_run(const fs::path& from, const fs::path& runs, const std::string& resolved) {
  auto manifest = read_json_object<nlohmann::ordered_json>(from / "manifest.json");
  RunFiles files(runs, from.filename().string(), {});
  for (const auto& [name, digest] : read_run_manifest(from).files)
    if (name != kResolved) files.copy_file(name, from / name);
  files.add_file(kResolved, resolved + defaults_of(read_file((from / kResolved).string())));
  manifest.erase("files");
  files.commit(std::move(manifest));
}

// Returns runs of `wanted` that are still missing; adds to `copies`.
std::set<std::string> copy_missing(const std::set<std::string>& wanted, const std::vector<fs::path>& others, const ResultsFolder& into,
                                   const ResolvedText& resolved, const IsCurrent& is_current, std::size_t& copies) {
  std::set<std::string> missing;
  for (const std::string& id : wanted)
    if (!is_complete(into.runs() / id, is_current)) missing.insert(id);
  const std::size_t before = missing.size();
  for (const fs::path& other : others) {
    const ResultsFolder locked(other);
    std::erase_if(missing, [&](const std::string& id) {
      const fs::path from = locked.runs() / id;
      if (!is_complete(from, is_current)) return false;
      copy_run(from, into.runs(), resolved(id));
      return true;
    });
  }
  copies += before - missing.size();
  return missing;
}

}  // namespace

std::size_t adopt_runs(const std::vector<std::string>& ids, const std::vector<fs::path>& others, const ResultsFolder& into,
                       const ResolvedText& resolved, const IsCurrent& is_current) {
  std::size_t copies = 0;
  std::set<std::string> missing(ids.begin(), ids.end());
  if (is_current) missing = copy_missing(missing, others, into, resolved, is_current, copies);
  if (!missing.empty()) copy_missing(missing, others, into, resolved, {}, copies);  // made by other code; the sweep reports changes
  if (copies > 0) sync_path(into.runs());
  return copies;
}

}  // namespace kvlab
