#include "app/runs/plan/input_files.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>

#include "app/results/safe_files.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "base/file_kind.h"
#include "base/hugging_face.h"
#include "base/read_file.h"
#include "base/usage.h"
#include "traces/make_trace.h"

namespace kvlab {

namespace fs = std::filesystem;

std::vector<fs::path> files_of_model(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path name = entry.path().filename();
    const bool is_read = name == "config.json" || name == "tokenizer.json" || name == "model.safetensors.index.json";
    if (entry.is_regular_file(error) && (is_read || name.extension() == ".safetensors")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool RescaledTrace::next(TraceRequest& request) {
  if (!source_->next(request)) return false;
  request.arrival = kStart + from_seconds(to_s(request.arrival) * factor_);
  return true;
}

double mean_rate(TraceSource& source, std::uint64_t limit) {
  TraceRequest request;
  std::uint64_t requests = 0;
  Time first = kNever, last = kStart;
  while ((limit == 0 || requests < limit) && source.next(request)) {
    ++requests;
    if (request.is_follow_up) continue;
    first = std::min(first, request.arrival);
    last = std::max(last, request.arrival);
  }
  if (requests < 2 || last <= first) throw InputError("'search' needs a trace whose arrivals span some time, to set their rate");
  return static_cast<double>(requests - 1) / to_s(last - first);
}

namespace {

std::vector<fs::path> files_of(const InputFile& input) {
  if (input.is_model) return files_of_model(input.path);
  std::error_code error;
  if (!fs::is_directory(input.path, error)) return {input.path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(input.path, fs::directory_options::skip_permission_denied, error))
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// Shipped model, GPU or recipe, or "".
fs::path named_spec(const std::string& key, const std::string& name) {
  const bool is_recipe = key == "recipe" || key == "kv_policy";
  const fs::path folder = is_recipe ? recipes_folder()
                                    : profiles_folder() + (key == "model"     ? "/models"
                                                           : key == "encoder" ? "/encoders"
                                                                              : "/hardware");
  const fs::path known = folder / (name + ".yaml");
  std::error_code error;
  return fs::exists(known, error) ? known : fs::path();
}

bool is_file_or_folder(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::is_regular_file(status) || fs::is_directory(status);
}

// Canonical; lengths delimit values.
void add_text(const YAML::Node& node, std::string& text) {
  if (node.IsMap()) {
    text += fmt::format("m{} ", node.size());
    for (const auto& item : node) {
      add_text(item.first, text);
      add_text(item.second, text);
    }
  } else if (node.IsSequence()) {
    text += fmt::format("l{} ", node.size());
    for (const auto& item : node) add_text(item, text);
  } else if (node.IsScalar()) {
    text += fmt::format("s{} {}", node.Scalar().size(), node.Scalar());
  } else {
    text += "n ";
  }
}

// azure_like.csv, azure_like.yaml.
std::string remark_on_sample(const Params& trace) {
  const std::filesystem::path file = trace.resolve_file(trace.inline_text("file", ""));
  if (!trace.has("file") || file.parent_path().filename() != "samples") return "";
  const std::string name = file.filename().string();
  const std::filesystem::path recipe = file.parent_path() / (name.substr(0, name.find('.')) + ".yaml");
  if (!is_file(recipe)) return "";
  return fmt::format("{} is a generated sample and no recording: traces/samples/README.md", name);
}

bool read_keep(Params& output, bool wants_perfetto) {
  const bool keeps_summary =
      output.choice("keep", {"all", "summary"}, 0, "files of a run: all, or no table of its requests and of its timeline") == 1;
  if (keeps_summary && wants_perfetto) output.fail_at("keep", "'keep: summary' writes no trace.json: leave out 'perfetto', or keep all");
  return keeps_summary;
}

}  // namespace

InputFiles::InputFiles(const Experiment& experiment) : experiment_(experiment) {
  for (const RunSpec& run : experiment.runs) {
    const auto [list, is_new] = files_.try_emplace(run.choices.get());
    if (!is_new) continue;
    visit(experiment.expanded_tree(run), "", list->second);
    for (const InputFile& file : list->second)
      if (std::error_code error; fs::is_regular_file(file.path, error)) look_at(file);
  }
}

void InputFiles::add_spec_files(const Choices* choices, const std::set<std::string>& files) {
  InputList& list = files_.at(choices);
  for (const std::string& file : files) {
    const fs::path path = fs::path(file).lexically_normal();
    if (std::any_of(list.begin(), list.end(), [&](const InputFile& f) { return f.path == path; })) continue;
    list.push_back({"named: " + path.filename().string(), path});
    look_at(list.back());
  }
}

void InputFiles::visit(const YAML::Node& node, const std::string& key, InputList& found) {
  if (node.IsMap()) {
    const bool makes = node["record"].IsDefined() || node["synthetic"].IsDefined();
    for (const auto& item : node) {
      const std::size_t before = found.size();
      visit(item.second, item.first.Scalar(), found);
      const bool is_kept = makes && item.first.Scalar() == "file";
      for (std::size_t i = before; i < found.size(); ++i) found[i].is_kept = found[i].is_kept || is_kept;
    }
  } else if (node.IsSequence()) {
    for (const auto& item : node) visit(item, key, found);
  } else if (node.IsScalar() && !node.Scalar().empty() && key != "name") {
    add_named(key, node.Scalar(), found);
  }
}

void InputFiles::add_named(const std::string& key, const std::string& text, InputList& found) {
  const auto [known, is_new] = named_.try_emplace({key, text});
  if (is_new) known->second = file_named(key, text);
  if (known->second) found.push_back(*known->second);
}

// Scalars naming an existing file or folder. Names of hardware, recipes and models mean their file, or a model's folder.
std::optional<InputFile> InputFiles::file_named(const std::string& key, const std::string& text) const {
  std::error_code error;
  fs::path path = find_named_file(*experiment_.config, text);
  const bool has_name = key == "model" || key == "hardware" || key == "encoder" || key == "recipe" || key == "kv_policy";
  const bool is_model = key == "model" && fs::is_directory(path, error);
  if (has_name && !is_model) {
    if (const fs::path known = named_spec(key, text); !known.empty()) path = known;
  }
  // A plain word names a folder only under 'file'.
  const bool is_word = !has_name && key != "file" && text.find_first_of("./") == std::string::npos;
  if (is_word && !fs::is_regular_file(path, error)) return std::nullopt;
  if (!is_file_or_folder(path)) return std::nullopt;
  return InputFile{key + ": " + text, path.lexically_normal(), is_model, false};
}

InputFiles::Stamps InputFiles::stamps_of(const InputFile& file) {
  Stamps stamps;
  for (const fs::path& path : files_of(file))
    if (const std::optional<FileStamp> stamp = stamp_of(path)) stamps.emplace_back(path.string(), *stamp);
  return stamps;
}

void InputFiles::look_at(const InputFile& file) {
  if (!stamps_.contains(file.path.string())) stamps_.emplace(file.path.string(), stamps_of(file));
}

std::string InputFiles::fingerprint(const InputFile& file) {
  look_at(file);
  auto known = fingerprint_.find(file.path.string());
  if (known == fingerprint_.end()) {
    const std::uint64_t hash = file.is_model ? fingerprint_of_files(file.path, files_of_model(file.path)) : fingerprint_of_path(file.path);
    known = fingerprint_.emplace(file.path.string(), hex(hash)).first;
  }
  return known->second;
}

void InputFiles::require_unchanged(const RunSpec& run) const {
  for (const InputFile& file : of_run(run)) {
    const Stamps& was = stamps_.at(file.path.string());
    const Stamps is = stamps_of(file);
    if (was == is) continue;
    std::string changed = file.path.string();
    for (std::size_t i = 0; i < std::max(was.size(), is.size()); ++i) {
      if (i < was.size() && i < is.size() && was[i] == is[i]) continue;
      changed = i < was.size() ? was[i].first : is[i].first;
      break;
    }
    throw InputError(changed + ": has changed since the sweep began, so the run is not kept; the same command does it again");
  }
}

std::vector<std::string> run_ids(const Experiment& experiment, InputFiles& files) {
  std::vector<std::string> ids;
  std::map<const Choices*, std::uint64_t> of_choices;  // for runs that differ only in seed
  for (const RunSpec& run : experiment.runs) {
    const auto [known, is_new] = of_choices.try_emplace(run.choices.get());
    if (is_new) {
      YAML::Node root = experiment.expanded_tree(run);  // environment variables expanded
      root.remove("name");
      root.remove("seed");
      std::string text;
      add_text(root, text);
      for (const InputFile& file : files.of_run(run))
        if (!file.is_kept) text += fmt::format("\n{} {}", file.label, files.fingerprint(file));
      known->second = fingerprint_of_text(text);
    }
    std::string id = hex(fingerprint_of_text(std::to_string(run.seed), known->second)).substr(0, 12);
    if (id[0] <= '9') id[0] = static_cast<char>('a' + (id[0] - '0') % 6);
    ids.push_back(std::move(id));
  }
  return ids;
}

std::string read_model_folder(const Params& p, const std::string& text) {
  const std::string path = p.resolve_file(text);
  std::error_code error;
  if (std::filesystem::is_directory(path, error) || !is_hub_id(text)) return path;
  const std::string folder = p.reading("model", [&] { return weights_folder(text); });
  for (const std::filesystem::path& file : files_of_model(folder)) UsageLog::note_file(file.string());
  return folder;
}

void refuse_pipe(const Params& p, const std::string& key) {
  const std::string path = p.resolve_file(p.inline_text(key, ""));
  if (special_file(path) == "a pipe")
    p.fail_at(key, fmt::format("'{}' is a pipe, and a run reads it more than once: save it to a file", path));
}

TraceInput read_trace(Params& p, std::uint64_t seed) {
  Params output = p.optional_child("output", "output"), trace = p.child("trace", "trace");
  TraceInput input;
  for (Params* const at : {&output, &trace})
    if (at->flag("perfetto", false, "write trace.json for ui.perfetto.dev")) input.wants_perfetto = true;
  input.keeps_summary = read_keep(output, input.wants_perfetto);
  output.reject_unread();
  refuse_pipe(trace, "file");
  input.remark = remark_on_sample(trace);
  input.open_with = [trace](std::uint64_t of_seed) {
    Params own = trace;
    return make_trace(own, of_seed);
  };
  input.open = [open = input.open_with, seed] { return open(seed); };
  TraceRequest first;
  input.open()->next(first);
  return input;
}

}  // namespace kvlab
