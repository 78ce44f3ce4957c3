#include "base/params.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/asked_keys.h"
#include "base/foreign_keys.h"
#include "base/short_forms.h"
#include "base/text.h"
#include "base/yaml_line.h"

namespace kvlab {

namespace {

// A value where a mapping belongs, as 8 in `poisson: 8`.
bool is_bare_value(const YAML::Node& node) { return node.IsDefined() && (node.IsScalar() || node.IsSequence()); }

std::string bare_value_text(const std::string& path, const YAML::Node& node) {
  return fmt::format("'{}': expected its parameters as {{key: value}}, found {}", path.substr(path.rfind('.') + 1), yaml_on_one_line(node));
}

}  // namespace

Params::Params(const std::shared_ptr<const ConfigFile>& file, std::shared_ptr<const Choices> choices, std::string owner)
    : Params(file, std::move(choices), file->root, "", std::move(owner)) {}

Params::Params(std::shared_ptr<const ConfigFile> file, std::shared_ptr<const Choices> choices, const YAML::Node& node, std::string path,
               std::string owner)
    : file_(std::move(file)), choices_(std::move(choices)), node_(node), path_(std::move(path)), owner_(std::move(owner)) {}

Params Params::from_text(const std::string& yaml, const std::string& owner) {
  return {parse_config(yaml, "<" + owner + ">"), std::make_shared<Choices>(), owner};
}

Params Params::describing(const std::string& owner, std::vector<ParamDoc>& docs) {
  Params p = from_text("{}", owner);
  p.docs_ = &docs;
  return p;
}

YAML::Node Params::find(const std::string& key) const {
  seen_->insert(key);
  (*asked_)[path_].insert(key);
  if (AskedKeys::listens()) AskedKeys::note(file_->name, {path_of(key), "", "", "", ""});
  if (is_describing() || !node_.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
  const YAML::Node node = node_[key];
  if (!node.IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
  return chosen_node(node, path_of(key), *choices_);
}

bool Params::has_own(const std::string& key) const { return !is_describing() && node_.IsMap() && node_[key].IsDefined(); }

void Params::fall_back_on(const Params& outer, std::set<std::string> keys) {
  outer_.push_back({std::make_shared<Params>(outer), std::move(keys)});
}

Params* Params::outer_with(const std::string& key) const {
  if (outer_.empty() || has_own(key)) return nullptr;
  for (const Outer& outer : outer_)
    if (outer.keys.contains(key) && outer.params->has(key)) return outer.params.get();
  return nullptr;
}

Params* Params::ask_outer(const std::string& key) const {
  Params* const outer = outer_with(key);
  if (outer == nullptr) return nullptr;
  seen_->insert(key);
  (*asked_)[path_].insert(key);
  return outer;
}

std::vector<std::string> Params::keys() const {
  std::vector<std::string> all;
  if (node_.IsMap()) {
    for (const auto& item : node_) all.push_back(item.first.Scalar());
  }
  return all;
}

void Params::fail_node(const YAML::Node& node, const std::string& path, const std::string& message) const {
  throw InputError(place_of(*file_, node, path) + ": " + message);
}

void Params::fail(const std::string& message) const { fail_node(node_, path_, message); }

void Params::fail_missing(const std::string& key) const {
  const std::string message = owner_ + " needs '" + key + "'";
  if (node_.IsMap()) {
    for (const auto& item : node_) {
      const std::string& found = item.first.Scalar();
      if (!seen_->contains(found) && !meant_names(found, {key}).empty())
        fail_node(item.first, path_of(found), message + "; found '" + found + "': misspelled?");
    }
  }
  fail(message);
}

void Params::fail_at(const std::string& key, const std::string& message) const {
  if (const Params* const outer = outer_with(key)) outer->fail_at(key, message);
  const YAML::Node node = find(key);
  fail_node(node.IsDefined() ? node : node_, path_of(key), message);
}

long long Params::integer_at(const std::string& key, const YAML::Node& node, long long min, long long max) const {
  const std::string found = text_at(key, node);
  long long value = 0;
  if (!parse_integer(found, value)) fail_node(node, path_of(key), "'" + key + "': not a whole number: '" + found + "'");
  if (value < min || value > max) fail_node(node, path_of(key), fmt::format("'{}' = {} is outside [{}, {}]", key, found, min, max));
  return value;
}

double Params::real_at(const std::string& key, const YAML::Node& node, double min, double max) const {
  const std::string found = text_at(key, node);
  double value = 0;
  if (!parse_real(found, value)) fail_node(node, path_of(key), "'" + key + "': not a number: '" + found + "'");
  if (!(value >= min && value <= max)) fail_node(node, path_of(key), fmt::format("'{}' = {} is outside [{}, {}]", key, found, min, max));
  return value;
}

std::string Params::text_at(const std::string& key, const YAML::Node& node) const {
  if (!node.IsScalar()) {
    const char* what = node.IsMap() ? "a mapping" : node.IsSequence() ? "a list" : "nothing";
    fail_node(node, path_of(key), "'" + key + "': expected one value, found " + what);
  }
  return node.Scalar();
}

void Params::record(const std::string& key, const std::string& type, const std::string& fallback, const std::string& range,
                    const std::string& meaning) {
  if (AskedKeys::listens()) AskedKeys::note(file_->name, {path_of(key), type, fallback, range, meaning});
  if (is_bare_value(node_)) fail(bare_value_text(path_, node_) + advice_on_parameters(path_, node_, key, fallback));
  if (docs_ != nullptr) docs_->push_back({key, type, fallback, range, meaning});
  if (docs_ == nullptr && !fallback.empty() && !has(key)) (*defaults_)[path_of(key)] = fallback;
}

bool Params::flag(const std::string& key, bool fallback, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->flag(key, fallback, meaning);
  if (const auto preferred = preferred_.find(key); preferred != preferred_.end()) fallback = preferred->second != 0;
  record(key, "flag", fallback ? "true" : "false", "true, false", meaning);
  const YAML::Node node = find(key);
  if (!node.IsDefined()) return fallback;
  const std::string found = text_at(key, node);
  if (found == "true") return true;
  if (found == "false") return false;
  fail_node(node, path_of(key), "'" + key + "': expected true or false, found '" + found + "'");
}

std::string Params::text(const std::string& key, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->text(key, meaning);
  record(key, "text", "", "", meaning);
  if (is_describing()) return "";
  const YAML::Node node = find(key);
  if (!node.IsDefined()) fail_missing(key);
  return text_at(key, node);
}

std::string Params::text(const std::string& key, const std::string& fallback, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->text(key, fallback, meaning);
  record(key, "text", fallback, "", meaning);
  const YAML::Node node = find(key);
  return node.IsDefined() ? text_at(key, node) : fallback;
}

std::size_t Params::choice(const std::string& key, const std::vector<std::string>& names, std::size_t fallback,
                           const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->choice(key, names, fallback, meaning);
  record(key, "choice", names[fallback], join(names, ", "), meaning);
  const YAML::Node node = find(key);
  if (!node.IsDefined()) return fallback;
  const std::string found = text_at(key, node);
  const auto at = std::find(names.begin(), names.end(), found);
  if (at == names.end()) fail_node(node, path_of(key), "'" + key + "': unknown value '" + found + "'" + suggestion(found, names));
  return static_cast<std::size_t>(at - names.begin());
}

Span Params::milliseconds(const std::string& key, double fallback, double min, double max, const std::string& meaning) {
  return from_seconds(optional<double>(key, fallback, min, max, meaning) * 1e-3);
}

Span Params::seconds(const std::string& key, double fallback, double min, double max, const std::string& meaning) {
  return from_seconds(optional<double>(key, fallback, min, max, meaning));
}

std::vector<double> Params::numbers(const std::string& key, double min, double max, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->numbers(key, min, max, meaning);
  record(key, "list of reals", "", range_text(min, max), meaning);
  const YAML::Node node = find(key);
  std::vector<double> all;
  if (!node.IsDefined()) return all;
  if (!node.IsSequence()) fail_node(node, path_of(key), "'" + key + "': expected a list, [a, b, ...]");
  for (const auto& item : node) all.push_back(real_at(key, item, min, max));
  return all;
}

std::vector<std::string> Params::words(const std::string& key, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->words(key, meaning);
  record(key, "list of words", "", "", meaning);
  const YAML::Node node = find(key);
  std::vector<std::string> all;
  if (!node.IsDefined()) return all;
  if (!node.IsSequence()) fail_node(node, path_of(key), "'" + key + "': expected a list, [a, b, ...]");
  for (const auto& item : node) all.push_back(text_at(key, item));
  return all;
}

Params Params::child(const std::string& key, const std::string& owner) {
  if (Params* const outer = ask_outer(key)) return outer->child(key, owner);
  if (!find(key).IsDefined() && !is_describing()) fail_missing(key);
  return optional_child(key, owner);
}

Params Params::below(const YAML::Node& node, const std::string& path, const std::string& owner) const {
  Params child(file_, choices_, node, path, owner);
  child.defaults_ = defaults_;
  child.asked_ = asked_;
  return child;
}

Params Params::optional_child(const std::string& key, const std::string& owner) {
  if (Params* const outer = ask_outer(key)) return outer->optional_child(key, owner);
  const YAML::Node node = find(key);
  if (!node.IsDefined() || node.IsNull()) {
    Params none = *this;
    none.node_.reset(YAML::Node(YAML::NodeType::Map));
    none.path_ = path_of(key);
    none.owner_ = owner;
    none.seen_ = std::make_shared<std::set<std::string>>();
    none.outer_.clear();
    return none;
  }
  if (!node.IsMap())
    fail_node(node, path_of(key),
              "'" + key + "': expected 'key: value' lines, found " + yaml_on_one_line(node) + advice_on_mapping(path_of(key), node));
  return below(node, path_of(key), owner);
}

Params Params::child_or_text(const std::string& key, const std::string& name_key, const std::string& owner) {
  if (Params* const outer = ask_outer(key)) return outer->child_or_text(key, name_key, owner);
  AskedKeys::note(file_->name, {path_of(key), "text or mapping", "", "", ""});
  const YAML::Node node = find(key);
  if (!node.IsDefined() || !node.IsScalar()) return optional_child(key, owner);
  YAML::Node map(YAML::NodeType::Map);
  map.force_insert(name_key, node);
  return below(map, path_of(key), owner);
}

std::pair<std::string, Params> Params::named(const std::string& key, const std::string& fallback, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->named(key, fallback, meaning);
  record(key, "name, or {name: {parameters}}", fallback, "", meaning);
  const YAML::Node node = find(key);
  const auto without_parameters = [&](const std::string& name) {
    if (AskedKeys::listens()) AskedKeys::note(file_->name, {path_of(key) + "." + name, "", "", "", ""});
    Params none = below(YAML::Node(YAML::NodeType::Map), path_of(key) + "." + name, key + " '" + name + "'");
    none.docs_ = docs_;
    none.preferred_ = preferred_;
    if (node.IsDefined()) {  // an empty mapping has no place of its own: messages name that of the word
      auto at_word = std::make_shared<ConfigFile>(*file_);
      at_word->name = place(file_->name, node.Mark());
      none.file_ = std::move(at_word);
      none.node_.reset(YAML::Node(YAML::NodeType::Map));
    }
    return std::pair{name, none};
  };
  if (!node.IsDefined()) {
    if (fallback.empty() && !is_describing()) fail_missing(key);
    return without_parameters(fallback);
  }
  if (node.IsScalar()) return without_parameters(node.Scalar());
  if (!node.IsMap() || node.size() != 1 || names_by_key(node))
    fail_node(node, path_of(key), "'" + key + "': expected a name, or one {name: {parameters}}" + advice_on_named(key, node));
  const std::string name = node.begin()->first.Scalar();
  const YAML::Node inner = chosen_node(node.begin()->second, path_of(key) + "." + name, *choices_);
  if (inner.IsNull()) return without_parameters(name);
  return {name, below(inner, path_of(key) + "." + name, key + " '" + name + "'")};
}

std::string Params::inline_text(const std::string& key, const std::string& absent) const {
  if (const Params* const outer = outer_with(key)) return outer->inline_text(key, absent);
  const YAML::Node node = node_.IsMap() ? node_[key] : YAML::Node(YAML::NodeType::Undefined);
  if (!node.IsDefined()) return absent;
  return yaml_on_one_line(chosen_node(node, path_of(key), *choices_));
}

std::string Params::text_of_all() const {
  YAML::Emitter out;
  out << node_;
  std::string text = out.c_str();
  for (const auto& [path, index] : *choices_)
    if (path.starts_with(path_)) text += "\n" + path + " " + std::to_string(index);
  return text;
}

void Params::add_asked(const Params& other) {
  for (const auto& [path, keys] : *other.asked_) {
    if (!path.empty()) (*asked_)[path_of(path)].insert(keys.begin(), keys.end());
  }
}

std::string Params::advice(const std::string& key) const {
  const std::string own = own_key_for(key);
  std::vector<std::string> places;
  for (const auto& [path, keys] : *asked_) {
    if (path != path_ && keys.contains(key)) places.push_back(path.empty() ? "at the top level" : "in '" + path + "'");
  }
  const bool is_named_alike = own.starts_with("'" + key + "'");
  if (!own.empty() && !(is_named_alike && !places.empty())) return "; here it is " + own;
  return places.empty() ? suggestion(key, {seen_->begin(), seen_->end()}) : "; it belongs " + join(places, " or ");
}

void Params::reject_unread() const {
  if (is_bare_value(node_)) fail(bare_value_text(path_, node_));
  if (!node_.IsMap()) return;
  for (const auto& item : node_) {
    const std::string& key = item.first.Scalar();
    if (seen_->contains(key)) continue;
    fail_node(item.first, path_of(key), "unknown key '" + key + "' in " + owner_ + advice(key));
  }
}

std::string Params::resolve_file(const std::string& path) const { return find_named_file(*file_, path); }

}  // namespace kvlab
