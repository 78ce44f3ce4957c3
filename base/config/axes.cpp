#include "base/config/axes.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/config/config_file.h"
#include "base/error.h"

namespace kvlab {

namespace {

constexpr std::size_t kMaxChoices = 2'000'000;

// "snapkv 128 allocator pyramid", "snapkv budget_frac 0.5": recipe, budget and changed parts; "budget_tokens 128" if the recipe is a list.
// Empty: none.
std::string policy_label(const YAML::Node& policy) {
  const bool has_recipe = policy["recipe"].IsScalar();
  std::string label = has_recipe ? policy["recipe"].Scalar() : "";
  const auto add = [&](const std::string& text) { label += (label.empty() ? "" : " ") + text; };
  for (const std::string key : {"budget_tokens", "budget_frac", "compression_ratio"})
    if (policy[key] && policy[key].IsScalar())
      add(has_recipe && key == "budget_tokens" ? policy[key].Scalar() : key + " " + policy[key].Scalar());
  for (const auto& item : policy) {
    const std::string key = item.first.Scalar();
    const bool is_named = key == "recipe" || key.starts_with("budget_") || key == "compression_ratio";
    if (is_named || item.second.IsSequence() || (item.second.IsMap() && item.second.size() != 1)) continue;
    add(key + " " + (item.second.IsMap() ? item.second.begin()->first.Scalar() : item.second.Scalar()));
  }
  return label;
}

// "prefill 2 decode 2": pools with replica counts that are no lists.
std::string pools_label(const YAML::Node& pools) {
  std::string label;
  for (const auto& item : pools) {
    const YAML::Node pool = item.second;
    const YAML::Node replicas = pool.IsMap() ? std::as_const(pool)["replicas"] : YAML::Node(YAML::NodeType::Undefined);
    label += (label.empty() ? "" : " ") + item.first.Scalar();
    if (!replicas.IsDefined()) label += " 1";
    if (replicas.IsDefined() && replicas.IsScalar()) label += " " + replicas.Scalar();
  }
  return label;
}

std::string label_of(const YAML::Node& item, std::size_t index, const std::string& path) {
  if (item.IsScalar()) return item.Scalar();
  if (path == "pools" && item.IsMap() && item.size() > 0) return pools_label(item);
  const std::string policy = item.IsMap() && item["recipe"] ? policy_label(item) : "";
  if (!policy.empty()) return policy;
  if (item.IsMap() && item.size() == 1) return item.begin()->first.Scalar();
  return std::to_string(index);
}

// For messages.
std::string in_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return text;
}

// Elements have their list's path.
std::string path_below(std::string path, const std::string& key) {
  while (path.ends_with("[]")) path.resize(path.size() - 2);
  return path + (path.empty() ? "" : ".") + key;
}

class Expander {
 public:
  using Point = std::vector<std::uint32_t>;
  using Points = std::vector<Point>;

  Expander(const ConfigFile& file, const std::set<std::string>& data_lists) : file_(file), data_lists_(data_lists) {}

  Grid run() {
    grid_.points = expand(file_.root, "");
    tell_apart();
    return std::move(grid_);
  }

 private:
  Points expand(const YAML::Node& node, const std::string& path) {
    if (node.IsMap()) return of_map(node, path);
    if (node.IsSequence() && !data_lists_.contains(path)) return of_list(node, path);
    return {{}};
  }

  Points of_map(const YAML::Node& node, const std::string& path) {
    Points all{{}};
    for (const auto& item : node) {
      const Points inside = expand(item.second, path_below(path, item.first.Scalar()));
      if (inside.size() == 1 && inside.front().empty()) continue;  // no list
      check_size(node, path, all.size() * inside.size(), inside.size() * num_choices(all) + all.size() * num_choices(inside));
      all = product(all, inside);
    }
    return all;
  }

  Points of_list(const YAML::Node& node, const std::string& path) {
    if (node.size() == 0) throw InputError(place_of(file_, node, path) + ": '" + path + "' is an empty list: no run would be made");
    Points all;
    std::size_t choices = 0;
    for (std::size_t i = 0; i < node.size(); ++i) {
      const YAML::Node item = node[i];
      const bool is_list = item.IsSequence();
      Points inside = expand(item, is_list ? path + "[]" : path);
      choices += num_choices(inside) + inside.size();
      check_size(node, path, all.size() + inside.size(), choices);
      std::uint32_t mine = is_list ? 0 : add(path, i, label_of(item, i, path));
      for (Point& point : inside) {
        if (is_list) mine = add(path, i, grid_.elements[point.front()].label);
        point.insert(point.begin(), mine);
        all.push_back(std::move(point));
      }
    }
    return all;
  }

  std::uint32_t add(const std::string& path, std::size_t index, const std::string& label) {
    grid_.elements.push_back({path, index, in_one_line(label)});
    return static_cast<std::uint32_t>(grid_.elements.size() - 1);
  }

  static std::size_t num_choices(const Points& points) {
    std::size_t sum = 0;
    for (const Point& point : points) sum += point.size();
    return sum;
  }

  static Points product(const Points& left, const Points& right) {
    Points all;
    all.reserve(left.size() * right.size());
    for (const Point& a : left) {
      for (const Point& b : right) {
        Point both;
        both.reserve(a.size() + b.size());
        both.insert(both.end(), a.begin(), a.end());
        both.insert(both.end(), b.begin(), b.end());
        all.push_back(std::move(both));
      }
    }
    return all;
  }

  void check_size(const YAML::Node& node, const std::string& path, std::size_t runs, std::size_t choices) const {
    if (runs > kMaxRuns) throw InputError(place_of(file_, node, path) + ": the lists span more than 100,000 runs");
    if (choices > kMaxChoices)
      throw InputError(fmt::format("{}: the lists span {} runs with {} choices in all; 2,000,000 are the most", place_of(file_, node, path),
                                   runs, choices));
  }

  // Equal labels ({vllm_v1: {...}} twice) get their position.
  void tell_apart() {
    std::map<std::string, std::map<std::string, std::set<std::size_t>>> places;  // path -> label -> indices
    for (const AxisElement& e : grid_.elements) places[e.path][e.label].insert(e.index);
    for (AxisElement& e : grid_.elements) {
      if (places[e.path][e.label].size() > 1) e.label += "#" + std::to_string(e.index + 1);
    }
  }

  const ConfigFile& file_;
  const std::set<std::string>& data_lists_;
  Grid grid_;
};

YAML::Node resolve(const YAML::Node& node, const std::string& path, const Choices& choices) {
  const YAML::Node here = chosen_node(node, path, choices);
  if (!here.IsMap()) return YAML::Clone(here);
  YAML::Node copy(YAML::NodeType::Map);
  for (const auto& item : here) copy[item.first.Scalar()] = resolve(item.second, path_below(path, item.first.Scalar()), choices);
  return copy;
}

}  // namespace

Choices Grid::choices(std::size_t point) const {
  Choices all;
  for (const std::uint32_t e : points[point]) all.emplace(elements[e].path, elements[e].index);
  return all;
}

Grid expand_axes(const ConfigFile& file, const std::set<std::string>& data_lists) { return Expander(file, data_lists).run(); }

YAML::Node chosen_node(YAML::Node node, const std::string& path, const Choices& choices) {
  std::string at = path;
  while (node.IsDefined() && node.IsSequence()) {
    const auto found = choices.find(at);
    if (found == choices.end() || found->second >= node.size()) break;
    node.reset(node[found->second]);
    at += "[]";  // nested lists are separate axes
  }
  return node;
}

YAML::Node resolved_tree(const ConfigFile& file, const Choices& choices) { return resolve(file.root, "", choices); }

}  // namespace kvlab
