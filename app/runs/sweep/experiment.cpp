#include "app/runs/sweep/experiment.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>

#include "app/runs/report/sweep_keys.h"
#include "base/config/axes.h"
#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

std::string value_of_variable(const std::string& name, const std::string& where) {
  const char* const value = std::getenv(name.c_str());
  if (value != nullptr && *value != '\0') return value;
  const char* const help =
      name == "KVLAB_DATA" ? "; docs/experiments.md says where its files are to be had (LLMServingSim repository, MIT)" : "";
  throw InputError(fmt::format("{}: environment variable {} is not set: export {}=FOLDER{}", where, name, name, help));
}

std::string expand_variables(std::string text, const std::string& where) {
  for (std::size_t at = text.find("${"); at != std::string::npos; at = text.find("${", at)) {
    const std::size_t end = text.find('}', at);
    if (end == std::string::npos) throw InputError(where + ": '${' without '}'");
    const std::string value = value_of_variable(text.substr(at + 2, end - at - 2), where);
    text.replace(at, end + 1 - at, value);
    at += value.size();
  }
  return text;
}

std::string path_below(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

using Expanded = std::vector<std::pair<YAML::Node, std::string>>;  // node -> expanded text

void find_variables(const YAML::Node& node, const ConfigFile& config, const std::string& path, Expanded& found) {
  if (node.IsScalar()) {
    if (node.Scalar().find("${") != std::string::npos)
      found.emplace_back(node, expand_variables(node.Scalar(), place_of(config, node, path)));
  } else if (node.IsSequence()) {
    for (const auto& item : node) find_variables(item, config, path, found);
  } else if (node.IsMap()) {
    for (const auto& item : node) find_variables(item.second, config, path_below(path, item.first.Scalar()), found);
  }
}

// 'paths_from' replaces the working directory and the experiment's folder.
void read_folders(ConfigFile& config) {
  if (!std::as_const(config.root)[kPathsFrom].IsDefined()) return;
  Params p =
      Params(std::make_shared<const ConfigFile>(config), std::make_shared<const Choices>(), "the experiment").child(kPathsFrom, kPathsFrom);
  const fs::path here = fs::path(config.name).parent_path();
  const std::string working = p.text("working_folder", "where the experiment was started"),
                    own = p.text("experiment_folder", "where its file lay");
  p.reject_unread();
  config.folders = {(here / working).lexically_normal(), (here / own).lexically_normal()};
}

// Checks and removes a key that is used after the runs.
void take(ConfigFile& config, const char* key, const std::function<void(Params)>& check) {
  if (!std::as_const(config.root)[key].IsDefined()) return;
  check(Params(std::make_shared<const ConfigFile>(config), std::make_shared<const Choices>(), "the experiment"));
  config.root.remove(key);
}

// found: null if they are known.
void take_included(ConfigFile& config, std::vector<IncludedResults>* found) {
  const YAML::Node node = std::as_const(config.root)[kIncludeResults];
  if (!node.IsDefined()) return;
  const auto add = [&](const YAML::Node& folder) {
    const std::string place = place_of(config, folder, kIncludeResults);
    if (!folder.IsScalar() || folder.Scalar().empty())
      throw InputError(place + ": 'include_results' is a list of results folders: include_results: [results/OTHER]");
    if (found != nullptr) found->push_back({folder.Scalar(), find_named_file(config, folder.Scalar()), place});
  };
  if (node.IsSequence())
    for (const auto& folder : node) add(folder);
  else
    add(node);
  config.root.remove(kIncludeResults);
}

std::shared_ptr<const ConfigFile> parse_expanded(const std::string& text, const std::string& file,
                                                 const std::vector<std::string>& overrides,
                                                 std::vector<IncludedResults>* included = nullptr) {
  auto config = std::make_shared<ConfigFile>(*parse_config(text, file, overrides));
  Expanded all;  // find all first: aliases share nodes, which are expanded once
  find_variables(config->root, *config, "", all);
  for (auto& [node, value] : all) node = value;
  read_folders(*config);
  take(*config, kFigures, check_figure_settings);
  take(*config, kExpect, read_expectations);
  take_included(*config, included);
  return config;
}

using Folders = std::pair<std::string, std::string>;  // working folder, experiment's

Folders folders_from(const fs::path& folder, const ConfigFile& config) {
  return {seen_from(folder, config.folders.at(0)), seen_from(folder, config.folders.at(1))};
}

void set_folders(YAML::Node& root, const Folders& folders) {
  YAML::Node paths(YAML::NodeType::Map);
  paths["working_folder"] = folders.first;
  paths["experiment_folder"] = folders.second;
  root[kPathsFrom] = paths;
}

// Paths of lists, in file order.
void collect_axes(const YAML::Node& node, const std::string& path, std::vector<std::string>& axes) {
  if (node.IsMap()) {
    for (const auto& item : node) collect_axes(item.second, path_below(path, item.first.Scalar()), axes);
  } else if (node.IsSequence() && !kDataLists.contains(path)) {
    if (path != "seed" && std::find(axes.begin(), axes.end(), path) == axes.end()) axes.push_back(path);
    for (const auto& item : node) collect_axes(item, path, axes);
  }
}

void check_name(Params& p, const std::string& name) {
  const bool plain =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
  if (name.empty() || name.starts_with('.') || !plain) {
    std::string fitting = name;
    std::replace_if(
        fitting.begin(), fitting.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '_' && c != '-'; }, '_');
    p.fail_at("name", "'name': '" + name + "' names a folder: letters, digits, '_', '-' and '.' only" +
                          (p.has("name") ? "" : "; it is taken from the file's name: write 'name: " + fitting + "' in the file"));
  }
}

struct SeedRange {
  std::uint64_t first = 1, count = 1;
};

class RunMaker {
 public:
  explicit RunMaker(Experiment& e) : e_(e), grid_(expand_axes(*e.config, kDataLists)) {
    for (const AxisElement& element : grid_.elements) {
      const auto axis = std::find(e.axes.begin(), e.axes.end(), element.path);
      axis_of_.push_back(static_cast<std::size_t>(axis - e.axes.begin()));
    }
  }

  void add_runs() {
    for (std::size_t point = 0; point < grid_.points.size(); ++point) {
      const auto choices = std::make_shared<const Choices>(grid_.choices(point));
      const SeedRange& seeds = read_seeds(point, choices);
      for (std::uint64_t s = 0; s < seeds.count; ++s) e_.runs.push_back({"", choices, seeds.first + s, labels_of(point)});
    }
  }

 private:
  // Once per distinct name, seed and seeds.
  const SeedRange& read_seeds(std::size_t point, const std::shared_ptr<const Choices>& choices) {
    std::vector<std::uint32_t> own;
    for (const std::uint32_t element : grid_.points[point]) {
      const std::string& path = grid_.elements[element].path;
      const std::string key = path.substr(0, path.find_first_of(".["));
      if (key == "name" || key == "seed" || key == "seeds") own.push_back(element);
    }
    const auto [known, is_new] = seeds_.try_emplace(std::move(own));
    if (is_new) known->second = read(Params(e_.config, choices, "the experiment"));
    if (e_.runs.size() + known->second.count > kMaxRuns)
      Params(e_.config, choices, "the experiment").fail("the lists and seeds span more than 100,000 runs");
    return known->second;
  }

  SeedRange read(Params p) {
    constexpr std::uint64_t kMaxSeed = std::numeric_limits<std::int64_t>::max();
    e_.name = p.text("name", fs::path(e_.file).stem().string(), "name of the results folder");
    check_name(p, e_.name);
    SeedRange seeds;
    seeds.first = p.optional<std::uint64_t>("seed", 1, 0, kMaxSeed - kMaxRuns, "seed of every random draw");
    seeds.count = p.optional<std::uint64_t>("seeds", 1, 1, kMaxRuns, "repetitions with seed, seed + 1, ...");
    return seeds;
  }

  [[nodiscard]] std::vector<std::string> labels_of(std::size_t point) const {
    std::vector<std::string> labels(e_.axes.size());
    for (const std::uint32_t element : grid_.points[point])
      if (axis_of_[element] < labels.size()) labels[axis_of_[element]] = grid_.elements[element].label;
    return labels;
  }

  Experiment& e_;
  Grid grid_;
  std::vector<std::size_t> axis_of_;  // by element; one past the last axis if none
  std::map<std::vector<std::uint32_t>, SeedRange> seeds_;
};

// Parsed once per thread: threads may not share nodes, and parsing per run would be quadratic in a list's length.
struct OwnTrees {
  std::shared_ptr<const ConfigFile> config;  // of their experiment
  std::shared_ptr<const ConfigFile> raw, expanded;
  std::map<fs::path, Folders> folders;  // by the folder that holds runs: the same from each of them
};

OwnTrees& own_trees(const Experiment& e) {
  thread_local OwnTrees own;
  if (own.config != e.config) own = {e.config, parse_config(e.text, e.file, e.overrides), parse_expanded(e.text, e.file, e.overrides), {}};
  return own;
}

YAML::Node tree_of(const Experiment& e, const ConfigFile& config, const RunSpec& run) {
  YAML::Node root = resolved_tree(config, *run.choices);
  root["name"] = e.name;
  root["seed"] = run.seed;
  for (const char* const key : {"seeds", kPathsFrom, kFigures, kExpect, kIncludeResults}) root.remove(key);
  return root;
}

}  // namespace

std::string seen_from(const fs::path& base, const fs::path& folder) {
  const fs::path here = fs::weakly_canonical(fs::current_path() / base), there = fs::weakly_canonical(fs::current_path() / folder);
  const auto top = [](const fs::path& path) { return path.relative_path().empty() ? fs::path() : *path.relative_path().begin(); };
  return !top(there).empty() && top(here) == top(there) ? there.lexically_relative(here).string() : there.string();
}

Experiment parse_experiment(const std::string& text, const std::string& file, const std::vector<std::string>& overrides) {
  Experiment e;
  e.file = file;
  e.text = text;
  e.overrides = overrides;
  e.config = parse_expanded(text, file, overrides, &e.included);
  collect_axes(e.config->root, "", e.axes);
  RunMaker(e).add_runs();
  return e;
}

std::string find_experiment(const std::string& file) {
  std::error_code error;
  if (fs::exists(file, error) || file.find('/') != std::string::npos || file.empty()) return file;
  std::vector<std::string> known;
  for (const fs::path& shipped : experiment_files()) {
    if (shipped.stem() == file || shipped.filename() == file) return shipped.string();
    known.push_back(shipped.stem().string());
  }
  const std::string meant = did_you_mean(fs::path(file).extension() == ".yaml" ? fs::path(file).stem().string() : file, known);
  if (meant.empty()) return file;
  throw InputError("there is no file '" + file + "', and no experiment of this name" + meant);
}

std::vector<fs::path> experiment_files() { return shipped_yaml_files("experiments"); }

Experiment load_experiment(const std::string& named, const std::vector<std::string>& overrides) {
  const std::string file = find_experiment(named);
  return parse_experiment(read_file(file), file, overrides);
}

Params Experiment::params(const RunSpec& run) const { return {own_trees(*this).expanded, run.choices, "the experiment"}; }

YAML::Node Experiment::resolved_tree(const RunSpec& run) const { return tree_of(*this, *own_trees(*this).raw, run); }

YAML::Node Experiment::expanded_tree(const RunSpec& run) const { return tree_of(*this, *config, run); }

std::string Experiment::resolved(const RunSpec& run) const { return YAML::Dump(resolved_tree(run)) + "\n"; }

std::string Experiment::resolved_in(const fs::path& folder, const RunSpec& run) const {
  YAML::Node root = resolved_tree(run);
  root["name"] = run.id;  // other experiments may share the run
  const auto [seen, is_new] = own_trees(*this).folders.try_emplace(folder.parent_path());
  if (is_new) seen->second = folders_from(folder, *config);
  set_folders(root, seen->second);
  return YAML::Dump(root) + "\n";
}

std::string Experiment::resolved_in(const fs::path& folder) const {
  YAML::Node root = YAML::Clone(own_trees(*this).raw->root);
  root.remove(kPathsFrom);
  root["name"] = name;
  set_folders(root, folders_from(folder, *config));
  return YAML::Dump(root) + "\n";
}

std::vector<std::uint64_t> Experiment::seeds() const {
  std::set<std::uint64_t> all;
  for (const RunSpec& run : runs) all.insert(run.seed);
  return {all.begin(), all.end()};
}

}  // namespace kvlab
