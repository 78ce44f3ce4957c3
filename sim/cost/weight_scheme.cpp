#include "sim/cost/weight_scheme.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

std::shared_ptr<const ConfigFile> schemes() {
  static const std::shared_ptr<const ConfigFile> file = load_config(profiles_folder() + "/quantization.yaml");
  return file;
}

WeightScheme scheme_of(const YAML::Node& name, const YAML::Node& entry) {
  YAML::Emitter config;
  config << YAML::Flow << entry["config"];
  return {name.Scalar(), entry["means"].Scalar(), config.c_str()};
}

bool lists(const YAML::Node& list, const std::string& name) {
  return list.IsDefined() && std::any_of(list.begin(), list.end(), [&](const YAML::Node& item) { return item.Scalar() == name; });
}

}  // namespace

WeightScheme find_weight_scheme(const std::string& name) {
  std::vector<std::string> known{"none"};
  for (const auto& entry : schemes()->root) {
    if (entry.first.Scalar() == name || lists(entry.second["also"], name)) return scheme_of(entry.first, entry.second);
    known.push_back(entry.first.Scalar());
  }
  throw InputError(fmt::format("'quantization': unknown format '{}'{}; known: {}", name, suggestion(name, known), join(known, ", ")));
}

std::optional<QuantizedName> split_quantized_name(const std::string& name) {
  const std::string lower = lower_case(name);
  std::optional<QuantizedName> found;
  for (const auto& entry : schemes()->root)
    for (const YAML::Node& ending : entry.second["ids"]) {
      const std::size_t kept = name.size() - std::min(name.size(), ending.Scalar().size());
      if (kept == 0 || !lower.ends_with(ending.Scalar()) || (found && found->base.size() <= kept)) continue;
      found = QuantizedName{name.substr(0, kept), scheme_of(entry.first, entry.second)};
    }
  return found;
}

}  // namespace kvlab
