#include "base/config/stage_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/config/config_file.h"
#include "base/error.h"

namespace kvlab {

namespace {

constexpr const char* kStages = "stages";

bool is_list_of_stages(const YAML::Node& list) {
  return list.IsDefined() && list.IsSequence() && list.size() > 0 &&
         std::all_of(list.begin(), list.end(), [](const YAML::Node& item) { return item.IsMap(); });
}

// Removes the stage's name, into `name`.
YAML::Node take_name(const YAML::Node& stage, std::string& name) {
  const YAML::Node own = stage["name"];
  if (!own.IsDefined() || !own.IsScalar()) return stage;
  name = own.Scalar();
  YAML::Node rest(YAML::NodeType::Map);
  for (const auto& item : stage)
    if (item.first.Scalar() != "name") rest.force_insert(item.first, item.second);
  return rest;
}

void name_stages_of(YAML::Node arrival, const std::string& file) {
  if (!arrival.IsMap()) return;
  const YAML::Node list = std::as_const(arrival)[kStages];
  if (!is_list_of_stages(list)) return;
  const std::size_t digits = std::to_string(list.size()).size();  // sorts names by stage
  YAML::Node named(YAML::NodeType::Map);
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const YAML::Node item = list[i];
    std::string name = fmt::format("stage {:0{}}", i + 1, digits);
    const YAML::Node stage = take_name(item, name);
    if (!names.insert(name).second) throw InputError(fmt::format("{}: two stages are named '{}'", place(file, item.Mark()), name));
    named.force_insert(name, stage);
  }
  arrival[kStages] = named;
}

}  // namespace

void name_stages(YAML::Node root, const std::string& file) {
  if (root.IsSequence())
    for (const auto& item : root) name_stages(item, file);
  if (!root.IsMap()) return;
  for (const auto& item : root) {
    const YAML::Node value = item.second;
    if (item.first.IsScalar() && item.first.Scalar() == "arrival") {
      name_stages_of(value, file);
      if (value.IsSequence())
        for (const auto& one : value) name_stages_of(one, file);
    }
    name_stages(value, file);
  }
}

}  // namespace kvlab
