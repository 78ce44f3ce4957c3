#include "app/results.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/csv.h"
#include "app/run_files.h"
#include "app/text_file.h"
#include "app/validate.h"
#include "base/spec_file.h"

#ifndef KVLAB_VERSION
#define KVLAB_VERSION "0.1.0"
#endif
#ifndef KVLAB_COMMIT
#define KVLAB_COMMIT ""
#endif

namespace kvlab {

namespace fs = std::filesystem;

ResultsFolder::ResultsFolder(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  is_new_ = !fs::exists(folder_, error);
  fs::create_directories(runs(), error);
  if (error) throw InputError(folder_.string() + ": cannot be made: " + error.message());
  lock_ = ::open((folder_ / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) throw InputError(folder_.string() + ": cannot be written: " + std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    throw InputError(folder_.string() + ": another kvlab is writing there; wait for it, or choose --out");
  }
}

ResultsFolder::~ResultsFolder() { ::close(lock_); }

void ResultsFolder::remove_if_new() const {
  if (is_new_ && !fs::exists(partial())) fs::remove_all(folder_);
}

std::string ResultsFolder::key_of(const std::string& run_id) const {
  std::ifstream stream(runs() / run_id / "manifest.json");
  const nlohmann::json manifest = nlohmann::json::parse(stream, nullptr, false);
  if (manifest.is_discarded() || !manifest.is_object()) return "";
  const auto found = manifest.find("input_key");
  return found != manifest.end() && found->is_string() ? found->get<std::string>() : "";
}

void ResultsFolder::remove_others(const Experiment& experiment) const {
  std::set<std::string> wanted;
  for (const RunSpec& run : experiment.runs) wanted.insert(run.id);
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(runs())) {
    if (!wanted.contains(entry.path().filename().string())) others.push_back(entry.path());
  }
  for (const fs::path& other : others) fs::remove_all(other);
}

namespace {

// Appends `path` to `out`, its first line only where it is the first file.
void append_rows(TextFile& out, const fs::path& path, std::string& header) {
  std::ifstream stream(path, std::ios::binary);
  std::string first;
  if (!std::getline(stream, first)) return;
  if (header.empty())
    out.write(first + "\n");
  else if (header != first)
    throw InternalError(path.string() + ": has other columns than the runs before it");
  header = first;
  std::vector<char> chunk(1 << 20);
  while (stream) {
    stream.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    out.write({chunk.data(), static_cast<std::size_t>(stream.gcount())});
  }
}

}  // namespace

bool ResultsFolder::has_tables_of(const std::vector<std::string>& run_ids) const {
  std::vector<std::string> found;
  try {
    for (const auto& row : read_csv(folder_ / "summary.csv").rows)
      if (found.empty() || found.back() != row[0]) found.push_back(row[0]);
  } catch (const InputError&) {  // it is not there, or broken
    return false;
  }
  return found == run_ids;
}

void ResultsFolder::remove_comparisons() const {
  for (const char* name : kValidationFiles) fs::remove(folder_ / name);
}

void ResultsFolder::join(const std::string& name, const std::vector<std::string>& run_ids) const {
  const fs::path target = folder_ / name, fresh = folder_ / (name + ".new");
  std::vector<fs::path> parts;
  for (const std::string& id : run_ids) {
    if (fs::exists(runs() / id / name)) parts.push_back(runs() / id / name);
  }
  fs::remove(fresh);
  if (parts.empty()) {
    fs::remove(target);
    return;
  }
  std::error_code cannot_link;
  if (parts.size() == 1) fs::create_hard_link(parts[0], fresh, cannot_link);  // large files are not kept twice
  if (parts.size() > 1 || cannot_link) {
    TextFile out(fresh);
    std::string header;
    for (const fs::path& part : parts) append_rows(out, part, header);
    out.close();
  }
  fs::rename(fresh, target);
  fs::remove(fresh);  // renaming one link of a file onto another leaves both
}

void ResultsFolder::join_runs(const std::vector<std::string>& run_ids) const {
  for (const char* name :
       {"summary.csv", "requests.csv", "timeline.csv", "search.csv", "heads.csv", "steps.csv", "answers.csv", "engine_steps.csv"})
    join(name, run_ids);
  join("trace.json", run_ids.size() == 1 ? run_ids : std::vector<std::string>{});
}

namespace {

// What the engine and the simulator read of a model's folder; results that are written into it are not the model.
std::uint64_t fingerprint_of_model(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path name = entry.path().filename();
    const bool is_read = name == "config.json" || name == "tokenizer.json" || name == "model.safetensors.index.json";
    if (entry.is_regular_file() && (is_read || name.extension() == ".safetensors")) files.push_back(entry.path());
  }
  return fingerprint_of_files(folder, std::move(files));
}

// The file that a name of the project's own stands for; none: empty.
fs::path named_spec(const std::string& key, const std::string& name) {
  std::error_code error;
  const fs::path folder = key == "recipe" ? recipes_folder() : profiles_folder() + (key == "model" ? "/models" : "/hardware");
  const fs::path known = folder / (name + ".yaml");
  return fs::exists(known, error) ? known : fs::path();
}

}  // namespace

std::map<std::string, std::string> InputFiles::of_run(const Experiment& experiment, const RunSpec& run) {
  const YAML::Node root = experiment.expanded_tree(run);
  std::map<std::string, std::string> found;
  visit(root, "", experiment, found);
  return found;
}

void InputFiles::visit(const YAML::Node& node, const std::string& key, const Experiment& experiment,
                       std::map<std::string, std::string>& found) {
  if (node.IsMap()) {
    for (const auto& item : node) visit(item.second, item.first.Scalar(), experiment, found);
  } else if (node.IsSequence()) {
    for (const auto& item : node) visit(item, key, experiment, found);
  }
  if (!node.IsScalar() || node.Scalar().empty() || key == "name") return;
  const std::string& text = node.Scalar();
  std::error_code error;
  fs::path path = find_named_file(*experiment.config, text);
  const bool has_name = key == "model" || key == "hardware" || key == "recipe";
  const bool is_model = key == "model" && fs::is_directory(path, error);
  if (has_name && !is_model) {
    if (const fs::path known = named_spec(key, text); !known.empty()) path = known;
  }
  if (!has_name && text.find_first_of("./") == std::string::npos && !fs::is_regular_file(path, error))
    return;  // a word; folders of that name in the working directory are not meant
  if (!fs::exists(path, error)) return;
  path = path.lexically_normal();
  auto known = fingerprint_.find(path.string());
  if (known == fingerprint_.end())
    known = fingerprint_.emplace(path.string(), hex(is_model ? fingerprint_of_model(path) : fingerprint_of_path(path))).first;
  found.emplace(key + ": " + text, known->second);
}

void name_results(const std::string& folder) {
  const char* const file = std::getenv("KVLAB_RESULT_FILE");
  if (file == nullptr || *file == '\0') return;
  TextFile out(file);
  out.write(fs::absolute(folder).string() + "\n");
  out.close();
}

std::string program_fingerprint() {
  static const std::string fingerprint = [] {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    return error ? program_version() : hex(fingerprint_of_path(program));
  }();
  return fingerprint;
}

std::string program_version() {
  const std::string commit = KVLAB_COMMIT;
  return std::string(KVLAB_VERSION) + (commit.empty() ? "" : " (" + commit + ")");
}

std::string input_key(const Experiment& experiment, const RunSpec& run, const std::string& how, InputFiles& files) {
  std::uint64_t key = fingerprint_of_text(program_fingerprint() + " " + how);
  const auto add = [&](const std::string& text) { key = fingerprint_of_text(text, key); };
  add(experiment.resolved(run));
  add(YAML::Dump(experiment.expanded_tree(run)));  // with the values of environment variables
  for (std::size_t i = 0; i < experiment.axes.size(); ++i) {
    add(experiment.axes[i]);
    add(run.labels[i]);
  }
  for (const auto& [named, fingerprint] : files.of_run(experiment, run)) add(named + " " + fingerprint);
  return hex(key);
}

}  // namespace kvlab
