#include "base/config/short_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/config/config_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

// Replaced by the value: NUMBER if above 0, SHARE if at most 1, FILE for a text.
struct Placeholder {
  const char *word, *absent;  // absent: for values of other kinds
};
constexpr Placeholder kNumber{"NUMBER", "N"}, kShare{"SHARE", "0.9"}, kFile{"FILE", "PATH"};

const std::map<std::string, std::string>& long_forms() {
  static const std::map<std::string, std::string> forms = {{"trace", "{file: FILE}"},
                                                           {"parallel", "{tp: NUMBER}"},
                                                           {"search", "{rate: [LOW, HIGH]}"},
                                                           {"stop", "{after_s: NUMBER}"},
                                                           {"memory", "{gpu_memory_frac: SHARE}"},
                                                           {"generate",
                                                            "{requests: NUMBER, arrival: {poisson: {rate_per_s: 2}}, prompt_tokens: "
                                                            "{fixed: {value: 512}}, output_tokens: {fixed: {value: 128}}}"},
                                                           {"validate", "{requests: FILE}"},
                                                           {"output", "{perfetto: true}"},
                                                           {"samples", "{NAME: {file: FILE}}"},
                                                           {"pools", "{prefill: {replicas: 1}, decode: {replicas: 1}}"}};
  return forms;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::string form_at(const std::string& path) {
  const bool is_second_level = std::count(path.begin(), path.end(), '.') == 1;
  if (is_second_level && path.starts_with("samples.")) return "{file: FILE}";
  if (is_second_level && path.starts_with("pools.")) return "{replicas: NUMBER}";
  const auto found = long_forms().find(last_part(path));
  return found == long_forms().end() ? "" : found->second;
}

std::string filled(std::string form, const Placeholder& placeholder, const std::string& value, bool fits) {
  if (const std::size_t at = form.find(placeholder.word); at != std::string::npos)
    form.replace(at, std::string(placeholder.word).size(), fits ? value : placeholder.absent);
  return form;
}

// With the policy's name: `name` or similar, or the one key without a value; "" if none.
std::string naming_key(const YAML::Node& found) {
  for (const char* const key : {"name", "type", "policy"})
    if (const YAML::Node value = std::as_const(found)[key]; value.IsDefined() && value.IsScalar()) return key;
  std::string bare;
  for (const auto& item : found) {
    if (!item.second.IsNull()) continue;
    if (!bare.empty()) return "";
    bare = item.first.Scalar();
  }
  return bare;
}

// Several policies in one mapping.
std::string advice_on_several(const std::string& key, const YAML::Node& found) {
  std::string list;
  for (const auto& item : found) {
    if (!item.second.IsMap()) return "";
    list += fmt::format("{}{{{}: {{...}}}}", list.empty() ? "" : ", ", item.first.Scalar());
  }
  return fmt::format("; to compare several, write a list: '{}: [{}]'", key, list);
}

}  // namespace

std::string advice_on_mapping(const std::string& path, const YAML::Node& found) {
  std::string form = form_at(path);
  if (form.empty()) return "";
  const std::string value = found.IsScalar() ? found.Scalar() : "";
  double number = 0;
  const bool is_number = parse_real(value, number);
  form = filled(form, kNumber, value, is_number && number > 0);
  form = filled(form, kShare, value, is_number && number > 0 && number <= 1);
  form = filled(form, kFile, value, !value.empty() && !is_number);
  return fmt::format("; write '{}: {}'", last_part(path), form);
}

bool names_by_key(const YAML::Node& found) {
  return found.IsMap() && !naming_key(found).empty() && std::as_const(found)[naming_key(found)].IsScalar();
}

std::string advice_on_named(const std::string& key, const YAML::Node& found) {
  if (!found.IsMap() || found.size() == 0) return "";
  const std::string naming = naming_key(found);
  if (naming.empty()) return advice_on_several(key, found);
  const std::string name = names_by_key(found) ? std::as_const(found)[naming].Scalar() : naming;
  YAML::Node parameters(YAML::NodeType::Map);
  for (const auto& item : found)
    if (item.first.Scalar() != naming) parameters[item.first.Scalar()] = item.second;
  if (parameters.size() == 0) return fmt::format("; write '{}: {}'", key, name);
  return fmt::format("; write '{}: {{{}: {}}}'", key, name, yaml_on_one_line(parameters));
}

std::string advice_on_parameters(const std::string& path, const YAML::Node& found, const std::string& key, const std::string& fallback) {
  const std::string name = last_part(path);
  if (fallback.empty()) return fmt::format("; write '{}: {{{}: {}}}'", name, key, yaml_on_one_line(found));
  return fmt::format("; for example '{}: {{{}: {}}}'", name, key, fallback);
}

}  // namespace kvlab
