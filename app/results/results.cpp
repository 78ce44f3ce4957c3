#include "app/results/results.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "app/results/run_files.h"
#include "app/results/run_folder.h"
#include "app/results/safe_files.h"
#include "app/runs/kinds/run_kind.h"
#include "base/fresh_file.h"
#include "base/json_text.h"
#include "base/read_file.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMarker = ".kvlab.json";
constexpr std::string_view kFresh = ".new-";  // prefix of a top-level file while written
constexpr int kFolderFormat = 2;

// First bytes.
using Beginning = std::pair<const char*, const char*>;
constexpr Beginning kBeginnings[] = {{"summary.csv", "run,"},
                                     {"requests.csv", "run,request,"},
                                     {"timeline.csv", "run,replica,"},
                                     {"search.csv", "run,probe,"},
                                     {"heads.csv", "run,sample,"},
                                     {"steps.csv", "run,sample,"},
                                     {"steps.csv", "padded_batch,"},
                                     {"kept.jsonl", "{\"run\""},
                                     {"kept_steps.jsonl", "{\"run\""},
                                     {"answers.csv", "run,recipe,"},
                                     {"engine_steps.csv", "run,step,"},
                                     {"service.csv", "run,group,"},
                                     {"request_groups.csv", "run,request,"},
                                     {"transfers.csv", "run,request,"},
                                     {"links.csv", "run,pool,"},
                                     {"pools.csv", "run,pool,"},
                                     {"stores.csv", "run,pool,"},
                                     {"trace.json", "{\"displayTimeUnit\""},
                                     {"validation.csv", ""},
                                     {"expectations.csv", "run,metric,"},
                                     {"validation_steps.csv", "padded_batch,"},
                                     {"throughput.csv", "time_s,"},
                                     {"resolved.yaml", ""},
                                     {"manifest.json", "{"}};

nlohmann::json read_json(const fs::path& path) {
  if (kind_of(path) != PathKind::kFile) return {};
  return read_json_object<nlohmann::json>(path);
}

// May precede the marker.
bool is_trace_of_start(const std::string& name) { return name == ".lock" || is_fresh_name(name, kMarker); }

bool holds_nothing(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (!is_trace_of_start(entry.path().filename().string())) return false;
  return true;
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path relative = fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

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
  publish_at_once(files.finish(std::move(manifest)));
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

const std::set<std::string>& ResultsFolder::top_names() {
  static const std::set<std::string> names = [] {
    std::set<std::string> all = all_run_tables();
    for (const auto& [name, beginning] : kBeginnings) all.insert(name);
    return all;
  }();
  return names;
}

bool is_locked(const fs::path& folder) {
  const int file = ::open((folder / ".lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  const bool is_free = ::flock(file, LOCK_EX | LOCK_NB) == 0;
  ::close(file);
  return !is_free;
}

std::vector<fs::path> unfinished_files(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_table = name.starts_with(kFresh) && ResultsFolder::top_names().contains(name.substr(kFresh.size()));
    if ((is_table || is_fresh_name(name, kMarker)) && kind_of(entry.path()) == PathKind::kFile) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

ResultsFolder::ResultsFolder(fs::path folder, const Experiment& experiment, Joins joins) : folder_(std::move(folder)) {
  std::error_code error;
  is_new_ = kind_without_link(folder_) == PathKind::kNothing;
  fs::create_directories(folder_, error);
  if (error) throw InputError(folder_.string() + ": cannot be made: " + error.message());
  const bool is_known = read_marker() || read_numbered();
  if (!is_known && !holds_nothing(folder_) && !read_marker())  // another process may have written it meanwhile
    throw InputError(folder_.string() +
                     ": holds files and is no results folder of kvlab, so nothing is written there: choose another "
                     "folder with --out, or an empty one");
  if (kind_without_link(runs()) == PathKind::kOther || kind_of(runs()) == PathKind::kFile)
    throw InputError(runs().string() + ": is not a folder; kvlab keeps its runs there: move it away");
  kind_without_link(partial());
  lock_.take(folder_);
  read_marker();  // may have been written until now
  require_experiment(experiment, joins);
  write_marker();
  fs::create_directories(runs());
}

ResultsFolder::ResultsFolder(fs::path folder) : folder_(std::move(folder)) {
  if (kind_without_link(folder_) != PathKind::kFolder) throw InputError(folder_.string() + ": no such folder; kvlab run makes one");
  if (!read_marker() && !read_numbered()) throw InputError(folder_.string() + ": is no results folder of kvlab");
  kind_without_link(runs());
  lock_.take(folder_);
  read_marker();
}

void ResultsFolder::Lock::take(const fs::path& folder) {
  file_ = ::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file_ < 0) throw InputError(folder.string() + ": cannot be written: " + std::strerror(errno));
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0)
    throw InputError(folder.string() + ": another kvlab is writing there; wait for it, or choose --out");
}

ResultsFolder::Lock::~Lock() {
  if (file_ >= 0) ::close(file_);
}

bool ResultsFolder::read_marker() {
  const nlohmann::json root = read_json(folder_ / kMarker);
  if (root.is_null()) return false;
  try {
    if (root.at("kvlab_results").get<int>() > kFolderFormat)
      throw InputError((folder_ / kMarker).string() + ": was written by a newer kvlab; choose another folder with --out");
    experiment_ = root.at("experiment").at("name").get<std::string>();
    file_ = root.at("experiment").at("file").get<std::string>();
    files_ = root.at("files").get<decltype(files_)>();
    sweep_ = root.at("sweep").get<decltype(sweep_)>();
  } catch (const nlohmann::json::exception&) {
    throw InputError((folder_ / kMarker).string() + ": is no marker of kvlab; move it away");
  }
  return true;
}

// By its manifest or by runs of an interrupted sweep.
bool ResultsFolder::read_numbered() {
  const nlohmann::json top = read_json(folder_ / "manifest.json");
  bool is_known =
      top.is_object() && top.value("program", nlohmann::json()).is_string() && top["program"].get<std::string>().starts_with("kvlab ");
  std::error_code error;
  if (!is_known && kind_of(runs()) == PathKind::kFolder)
    for (const auto& entry : fs::directory_iterator(runs(), error)) is_known = is_known || read_run_manifest(entry.path()).is_ours();
  if (!is_known) return false;
  if (top.is_object() && top.contains("file") && top["file"].is_string()) {
    experiment_ = top.value("experiment", "");
    file_ = seen_from(folder_, top["file"].get<std::string>());
  }
  for (const auto& [name, beginning] : kBeginnings) {
    if (kind_of(folder_ / name) != PathKind::kFile) continue;
    std::ifstream stream(folder_ / name);
    std::string begins(std::string_view(beginning).size(), '\0');
    stream.read(begins.data(), static_cast<std::streamsize>(begins.size()));
    if (begins == beginning) files_[name].insert(digest_of_file(folder_ / name));
  }
  return true;
}

void ResultsFolder::write_marker() const {
  const nlohmann::ordered_json root = {
      {"kvlab_results", kFolderFormat}, {"experiment", {{"name", experiment_}, {"file", file_}}}, {"files", files_}, {"sweep", sweep_}};
  kind_without_link(folder_ / kMarker);
  replace_file(folder_ / kMarker, root.dump(1) + "\n");
}

void ResultsFolder::require_experiment(const Experiment& experiment, Joins joins) {
  const fs::path file = fs::weakly_canonical(experiment.file), mine = fs::weakly_canonical(folder_ / file_);
  if (!file_.empty() && (file == mine || is_inside(file, folder_))) return;
  std::error_code error;
  if (file_.empty() || !fs::exists(mine, error)) {  // renamed, or the results were moved
    file_ = seen_from(folder_, experiment.file);
    experiment_ = experiment.name;
  } else if (joins == Joins::kNo) {
    throw InputError(fmt::format(
        "{}: belongs to another experiment, {}: choose another folder with --out, or keep the runs of both there "
        "with --out {} --join, where tables and figures become those of this experiment",
        folder_.string(), fs::path(file_).is_absolute() ? file_ : (folder_ / file_).lexically_normal().string(), folder_.string()));
  }
}

bool ResultsFolder::is_own(const std::string& name) const {
  const auto found = files_.find(name);
  return found != files_.end() && kind_of(folder_ / name) == PathKind::kFile && found->second.contains(digest_of_file(folder_ / name));
}

void ResultsFolder::require_own(const std::string& name) const {
  if (kind_without_link(folder_ / name) == PathKind::kNothing || is_own(name)) return;
  throw InputError(
      (folder_ / name).string() +
      ": was not written by kvlab, or was changed since, and would be replaced: move it away, or choose another folder with --out");
}

void ResultsFolder::begin_sweep(const std::vector<std::string>& run_ids, const std::set<std::string>& will_write) {
  for (const std::string& name : will_write) require_own(name);
  for (const fs::path& file : unfinished_files(folder_)) fs::remove(file);
  sweep_ = {run_ids.begin(), run_ids.end()};
  write_marker();
  remove_leftovers(runs());
}

fs::path ResultsFolder::fresh_of(const std::string& name) const { return folder_ / (std::string(kFresh) + name); }

void ResultsFolder::replace(const std::map<std::string, fs::path>& fresh) {
  for (const auto& [name, file] : fresh) require_own(name);
  std::map<std::string, std::string> digests;
  for (const auto& [name, file] : fresh) {
    digests[name] = digest_of_file(file);
    sync_path(file);
    files_[name].insert(digests[name]);
  }
  write_marker();  // before the renames, so that all files are known after a crash
  for (const auto& [name, file] : fresh) {
    fs::rename(file, folder_ / name);
    fs::remove(file);  // renaming onto a hard link of the same file keeps both
    files_[name] = {digests[name]};
  }
  sync_path(folder_);
  write_marker();
}

void ResultsFolder::replace_texts(const std::map<std::string, std::string>& texts) {
  std::map<std::string, fs::path> fresh;
  try {
    for (const auto& [name, text] : texts) {
      fresh[name] = fresh_of(name);
      kind_without_link(fresh[name]);
      TextFile file(fresh[name]);
      file.write(text);
      file.close();
    }
    replace(fresh);
  } catch (const std::exception&) {
    std::error_code ignored;
    for (const auto& [name, file] : fresh)
      if (kind_of(file) == PathKind::kFile) fs::remove(file, ignored);
    throw;
  }
}

void ResultsFolder::remove(const std::string& name) {
  if (is_own(name)) fs::remove(folder_ / name);
}

void ResultsFolder::remove_comparisons() {
  for (const char* name : kValidationFiles) remove(name);
}

void ResultsFolder::remove_if_new() {
  if (!is_new_ || kind_of(partial()) != PathKind::kNothing) return;
  std::error_code ignored;
  fs::remove(folder_ / kMarker, ignored);
  fs::remove(folder_ / ".lock", ignored);
  fs::remove(runs(), ignored);  // succeeds if empty
  fs::remove(folder_, ignored);
}

void name_results(const std::string& folder) {
  const char* const file = std::getenv("KVLAB_RESULT_FILE");
  if (file == nullptr || *file == '\0') return;
  TextFile out(file);
  out.write(fs::absolute(folder).string() + "\n");
  out.close();
}

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
