#include "app/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>

#include "app/text_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

std::string place(const std::string& file, const YAML::Node& node) {
  const YAML::Mark mark = node.Mark();
  return mark.is_null() ? file : fmt::format("{}:{}:{}", file, mark.line + 1, mark.column + 1);
}

std::string value_of_variable(const std::string& name, const std::string& where) {
  const char* const value = std::getenv(name.c_str());
  if (value != nullptr && *value != '\0') return value;
  const char* const help =
      name == "KVLAB_DATA" ? "; docs/experiments.md says where its files are to be had (LLMServingSim repository, MIT)" : "";
  throw InputError(fmt::format("{}: environment variable {} is not set: export {}=FOLDER{}", where, name, name, help));
}

// "${NAME}/file" -> the variable's value in its place.
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

void expand_tree(YAML::Node node, const std::string& file) {
  if (node.IsScalar()) {
    if (node.Scalar().find("${") != std::string::npos) node = expand_variables(node.Scalar(), place(file, node));
  } else if (node.IsSequence() || node.IsMap()) {
    for (auto item : node) expand_tree(node.IsMap() ? item.second : YAML::Node(item), file);
  }
}

std::shared_ptr<const ConfigFile> parse_expanded(const std::string& text, const std::string& file,
                                                 const std::vector<std::string>& overrides) {
  std::shared_ptr<const ConfigFile> config = parse_config(text, file, overrides);
  expand_tree(config->root, file);
  return config;
}

// Paths of lists that are axes, in the order of the file.
void collect_axes(const YAML::Node& node, const std::string& path, std::vector<std::string>& axes) {
  if (node.IsMap()) {
    for (const auto& item : node) collect_axes(item.second, path.empty() ? item.first.Scalar() : path + "." + item.first.Scalar(), axes);
  } else if (node.IsSequence() && !kDataLists.contains(path)) {
    if (path != "seed" && std::find(axes.begin(), axes.end(), path) == axes.end()) axes.push_back(path);
    for (const auto& item : node) collect_axes(item, path, axes);
  }
}

void check_name(Params& p, const std::string& name) {
  const bool plain =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
  if (name.empty() || name.starts_with('.') || !plain) {
    p.fail_at("name", "'name': '" + name + "' names a folder: letters, digits, '_', '-' and '.' only");
  }
}

using Grid = std::vector<std::pair<Choices, std::map<std::string, std::string>>>;

// Two elements of a list may carry one label ({vllm_v1: {...}} twice): then all of that label get their place in the list.
void tell_apart(Grid& grid, const std::vector<std::string>& axes) {
  for (const std::string& axis : axes) {
    std::map<std::string, std::set<std::size_t>> places;
    for (const auto& [choices, labels] : grid) {
      if (labels.contains(axis)) places[labels.at(axis)].insert(choices.at(axis));
    }
    for (auto& [choices, labels] : grid) {
      const auto found = labels.find(axis);
      if (found != labels.end() && places[found->second].size() > 1) found->second += "#" + std::to_string(choices.at(axis) + 1);
    }
  }
}

void add_runs(Experiment& e) {
  constexpr std::uint64_t kMaxSeed = std::numeric_limits<std::int64_t>::max();
  constexpr std::size_t kMaxRuns = 100'000;
  Grid grid;
  for (Choices& choices : expand_axes(*e.config, kDataLists)) {
    const auto labels = choice_labels(*e.config, choices);
    grid.emplace_back(std::move(choices), std::map<std::string, std::string>(labels.begin(), labels.end()));
  }
  tell_apart(grid, e.axes);
  for (const auto& [choices, labels] : grid) {
    Params p(e.config, std::make_shared<Choices>(choices), "the experiment");
    e.name = p.text("name", std::filesystem::path(e.file).stem().string(), "name of the results folder");
    check_name(p, e.name);
    const auto first = p.optional<std::uint64_t>("seed", 1, 0, kMaxSeed - kMaxRuns, "seed of every random draw");
    const auto num_seeds = p.optional<std::uint64_t>("seeds", 1, 1, kMaxRuns, "repetitions with seed, seed + 1, ...");
    if (e.runs.size() + num_seeds > kMaxRuns) p.fail("the lists and seeds span more than 100,000 runs");
    for (std::uint64_t s = 0; s < num_seeds; ++s) {
      RunSpec run{fmt::format("{:04}", e.runs.size() + 1), choices, first + s, {}};
      for (const std::string& axis : e.axes) run.labels.push_back(labels.contains(axis) ? labels.at(axis) : "");
      e.runs.push_back(std::move(run));
    }
  }
}

}  // namespace

Experiment parse_experiment(const std::string& text, const std::string& file, const std::vector<std::string>& overrides) {
  Experiment e;
  e.file = file;
  e.text = text;
  e.overrides = overrides;
  e.config = parse_expanded(text, file, overrides);
  collect_axes(e.config->root, "", e.axes);
  add_runs(e);
  return e;
}

Experiment load_experiment(const std::string& file, const std::vector<std::string>& overrides) {
  return parse_experiment(read_text(file), file, overrides);
}

Params Experiment::params(const RunSpec& run) const {
  return {parse_expanded(text, file, overrides), std::make_shared<Choices>(run.choices), "the experiment"};
}

std::string Experiment::resolved(const RunSpec& run) const {
  YAML::Node root = YAML::Load(resolved_text(*parse_config(text, file, overrides), run.choices));
  root["name"] = name;
  root["seed"] = run.seed;
  root.remove("seeds");
  YAML::Emitter out;
  out << root;
  return std::string(out.c_str()) + "\n";
}

std::vector<std::uint64_t> Experiment::seeds() const {
  std::set<std::uint64_t> all;
  for (const RunSpec& run : runs) all.insert(run.seed);
  return {all.begin(), all.end()};
}

}  // namespace kvlab
