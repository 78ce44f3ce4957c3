#include "base/config/params.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <limits>

#include "base/config/advice.h"
#include "base/config/asked_keys.h"
#include "base/config/axes.h"
#include "base/config/config_file.h"
#include "base/config/keyed_values.h"
#include "base/text.h"

namespace kvlab {

namespace {

// Instead of a mapping, such as 8 in `poisson: 8`.
bool is_bare_value(const YAML::Node& node) { return node.IsDefined() && (node.IsScalar() || node.IsSequence()); }

std::string bare_value_text(const std::string& path, const YAML::Node& node) {
  return fmt::format("'{}': expected its parameters as {{key: value}}, found {}", path.substr(path.rfind('.') + 1), yaml_on_one_line(node));
}

bool parse(const std::string& text, double& value) { return parse_real(text, value); }
bool parse(const std::string& text, long long& value) { return parse_integer(text, value); }
std::string text_of(double value) { return number_text(value); }
std::string text_of(long long value) { return std::to_string(value); }

template <class T>
T largest(std::size_t bytes, bool is_unsigned) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(std::numeric_limits<unsigned long long>::max() >> (8 * (sizeof(T) - bytes) + (is_unsigned ? 0 : 1)));
  else
    return bytes == sizeof(float) ? std::numeric_limits<float>::max() : std::numeric_limits<T>::max();
}

// "[min, max]", or "[min, ...]" if max is the maximum of the caller's type.
template <class T>
std::string range_text(T min, T max, std::size_t bytes = sizeof(T), bool is_unsigned = false) {
  return "[" + text_of(min) + ", " + (max == largest<T>(bytes, is_unsigned) ? "..." : text_of(max)) + "]";
}

}  // namespace

struct Params::State {
  std::shared_ptr<const ConfigFile> file;
  std::shared_ptr<const Choices> choices;
  YAML::Node node;
  std::string path, owner;
  std::shared_ptr<std::set<std::string>> seen = std::make_shared<std::set<std::string>>();
  // Path of a mapping -> keys asked for, in the file.
  std::shared_ptr<AskedByPath> asked = std::make_shared<AskedByPath>();
  std::shared_ptr<ParamDefaults> defaults = std::make_shared<ParamDefaults>();
  std::map<std::string, long long> preferred = {};  // prefer()
  struct Outer {
    std::shared_ptr<Params> params;
    std::set<std::string> keys;
  };
  std::vector<Outer> outer = {};  // fall_back_on()
  std::vector<ParamDoc>* docs = nullptr;
  KeyedValues values{node};
  [[nodiscard]] std::string path_of(const std::string& key) const { return path.empty() ? key : path + "." + key; }
  [[nodiscard]] YAML::Node find(const std::string& key) const;  // or the chosen element of a list
  [[nodiscard]] bool has_own(const std::string& key) const { return docs == nullptr && values.contain(key); }
  [[noreturn]] void fail_node(const YAML::Node& at, const std::string& at_path, const std::string& message) const;
  [[noreturn]] void fail_key(const std::string& key, const YAML::Node& at, const std::string& problem) const {
    fail_node(at, path_of(key), "'" + key + "'" + problem);
  }
  template <class T>
  [[nodiscard]] T number_at(const std::string& key, const YAML::Node& at, T min, T max) const;
  template <class Read>
  [[nodiscard]] auto list_at(const std::string& key, Read read_one) const;
  [[nodiscard]] std::string text_at(const std::string& key, const YAML::Node& at) const;
  [[nodiscard]] std::unique_ptr<State> below(const YAML::Node& at, const std::string& at_path, const std::string& of) const;
};

YAML::Node Params::State::find(const std::string& key) const {
  seen->insert(key);
  (*asked)[path].insert(key);
  if (AskedKeys::listens()) AskedKeys::note(file->name, {path_of(key), "", "", "", ""});
  return has_own(key) ? chosen_node(values.at(key), path_of(key), *choices) : YAML::Node(YAML::NodeType::Undefined);
}

void Params::State::fail_node(const YAML::Node& at, const std::string& at_path, const std::string& message) const {
  throw InputError(place_of(*file, at, at_path) + ": " + message);
}

template <class T>
T Params::State::number_at(const std::string& key, const YAML::Node& at, T min, T max) const {
  const std::string found = text_at(key, at);
  T value = 0;
  if (!parse(found, value)) fail_key(key, at, fmt::format(": not a {}number: '{}'", std::is_integral_v<T> ? "whole " : "", found));
  if (!(value >= min && value <= max)) fail_key(key, at, fmt::format(" = {} is outside [{}, {}]", found, min, max));
  return value;
}

template <class Read>
auto Params::State::list_at(const std::string& key, Read read_one) const {
  const YAML::Node node = find(key);
  std::vector<decltype(read_one(node))> all;
  if (!node.IsDefined()) return all;
  if (!node.IsSequence()) fail_key(key, node, ": expected a list, [a, b, ...]");
  for (const auto& item : node) all.push_back(read_one(item));
  return all;
}

std::string Params::State::text_at(const std::string& key, const YAML::Node& at) const {
  if (!at.IsScalar()) {
    const char* what = at.IsMap() ? "a mapping" : at.IsSequence() ? "a list" : "nothing";
    fail_key(key, at, std::string(": expected one value, found ") + what);
  }
  return at.Scalar();
}

std::unique_ptr<Params::State> Params::State::below(const YAML::Node& at, const std::string& at_path, const std::string& of) const {
  auto child = std::make_unique<State>(State{file, choices, at, at_path, of});
  child->defaults = defaults;
  child->asked = asked;
  child->docs = docs;
  return child;
}

Params::Params(const std::shared_ptr<const ConfigFile>& file, std::shared_ptr<const Choices> choices, std::string owner)
    : Params(std::make_unique<State>(State{file, std::move(choices), file->root, "", std::move(owner)})) {}
Params::Params(std::unique_ptr<State> state) : state_(std::move(state)) {}
Params::Params(const Params& other) : state_(std::make_unique<State>(*other.state_)) {}
Params::Params(Params&& other) noexcept = default;
Params& Params::operator=(const Params& other) { return *this = Params(other); }
Params& Params::operator=(Params&& other) noexcept = default;
Params::~Params() = default;

const std::string& Params::owner() const { return state_->owner; }
const std::string& Params::path() const { return state_->path; }
const ParamDefaults& Params::defaults() const { return *state_->defaults; }
bool Params::is_describing() const { return state_->docs != nullptr; }
bool Params::has(const std::string& key) const { return has_own(key) || outer_with(key) != nullptr; }
void Params::prefer(const std::string& key, long long value) { state_->preferred[key] = value; }
void Params::allow(const std::vector<std::string>& keys) { state_->seen->insert(keys.begin(), keys.end()); }

long long Params::told(const std::string& key, long long absent) const {
  const auto found = state_->preferred.find(key);
  return found == state_->preferred.end() ? absent : found->second;
}

Params Params::from_text(const std::string& yaml, const std::string& owner) {
  thread_local const std::shared_ptr<const ConfigFile> empty = parse_config("{}", "");  // threads may not share nodes
  const auto config = std::make_shared<ConfigFile>(yaml == "{}" ? *empty : *parse_config(yaml, "<" + owner + ">"));
  config->name = "<" + owner + ">";
  return {config, std::make_shared<Choices>(), owner};
}

Params Params::describing(const std::string& owner, std::vector<ParamDoc>& docs) {
  Params p = empty(owner);
  p.state_->docs = &docs;
  return p;
}

bool Params::has_own(const std::string& key) const { return state_->has_own(key); }

bool Params::has_within(const std::string& key, const std::string& inner) const {
  if (const Params* const outer = outer_with(key)) return outer->has_within(key, inner);
  if (!has_own(key)) return false;
  const YAML::Node value = chosen_node(state_->values.at(key), state_->path_of(key), *state_->choices);
  return value.IsMap() && value[inner].IsDefined();
}

void Params::fall_back_on(const Params& outer, const std::vector<std::string>& keys) {
  state_->outer.push_back({std::make_shared<Params>(outer), {keys.begin(), keys.end()}});
}

Params* Params::outer_with(const std::string& key) const {
  if (state_->outer.empty() || has_own(key)) return nullptr;
  for (const State::Outer& outer : state_->outer)
    if (outer.keys.contains(key) && outer.params->has(key)) return outer.params.get();
  return nullptr;
}

Params* Params::ask_outer(const std::string& key) const {
  Params* const outer = outer_with(key);
  if (outer == nullptr) return nullptr;
  state_->seen->insert(key);
  (*state_->asked)[state_->path].insert(key);
  return outer;
}

std::vector<std::string> Params::keys() const {
  std::vector<std::string> all;
  if (state_->node.IsMap())
    for (const auto& item : state_->node) all.push_back(item.first.Scalar());
  return all;
}

void Params::fail(const std::string& message) const { state_->fail_node(state_->node, state_->path, message); }

void Params::fail_missing(const std::string& key) const {
  const std::string message = state_->owner + " needs '" + key + "'";
  if (state_->node.IsMap()) {
    for (const auto& item : state_->node) {
      const std::string& found = item.first.Scalar();
      if (!state_->seen->contains(found) && !meant_names(found, {key}).empty())
        state_->fail_node(item.first, state_->path_of(found), message + "; found '" + found + "': misspelled?");
    }
  }
  fail(message);
}

void Params::fail_at(const std::string& key, const std::string& message) const {
  if (const Params* const outer = outer_with(key)) outer->fail_at(key, message);
  const YAML::Node node = state_->find(key);
  state_->fail_node(node.IsDefined() ? node : state_->node, state_->path_of(key), message);
}

void Params::record(const std::string& key, const std::string& type, const std::string& fallback, const std::string& range,
                    const std::string& meaning) {
  if (AskedKeys::listens()) AskedKeys::note(state_->file->name, {state_->path_of(key), type, fallback, range, meaning});
  if (is_bare_value(state_->node))
    fail(bare_value_text(state_->path, state_->node) + advice_on_parameters(state_->path, state_->node, key, fallback));
  if (state_->docs != nullptr) state_->docs->push_back({key, type, fallback, range, meaning});
  if (state_->docs == nullptr && !fallback.empty() && !has(key)) (*state_->defaults)[state_->path_of(key)] = fallback;
}

bool Params::flag(const std::string& key, bool fallback, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->flag(key, fallback, meaning);
  fallback = told(key, fallback ? 1 : 0) != 0;
  record(key, "flag", fallback ? "true" : "false", "true, false", meaning);
  const YAML::Node node = state_->find(key);
  if (!node.IsDefined()) return fallback;
  const std::string found = state_->text_at(key, node);
  if (found == "true" || found == "false") return found == "true";
  state_->fail_key(key, node, ": expected true or false, found '" + found + "'");
}

std::string Params::text(const std::string& key, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->text(key, meaning);
  record(key, "text", "", "", meaning);
  if (is_describing()) return "";
  const YAML::Node node = state_->find(key);
  if (!node.IsDefined()) fail_missing(key);
  return state_->text_at(key, node);
}

std::string Params::text(const std::string& key, const std::string& fallback, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->text(key, fallback, meaning);
  record(key, "text", fallback, "", meaning);
  const YAML::Node node = state_->find(key);
  return node.IsDefined() ? state_->text_at(key, node) : fallback;
}

std::size_t Params::choice(const std::string& key, const std::vector<std::string>& names, std::size_t fallback,
                           const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->choice(key, names, fallback, meaning);
  record(key, "choice", names[fallback], join(names, ", "), meaning);
  const YAML::Node node = state_->find(key);
  if (!node.IsDefined()) return fallback;
  const std::string found = state_->text_at(key, node);
  const auto at = std::find(names.begin(), names.end(), found);
  if (at == names.end()) state_->fail_key(key, node, ": unknown value '" + found + "'" + suggestion(found, names));
  return static_cast<std::size_t>(at - names.begin());
}

long long Params::nanoseconds(const std::string& key, double value, double in_s, const char* smallest) const {
  const Span span = from_seconds(value * in_s);
  if (value > 0 && span == Span{0} && has(key))
    fail_at(key, fmt::format("'{}' = {} is below a nanosecond: write 0, or at least {}", key, number_text(value), smallest));
  return ns(span);
}

template <class T>
T Params::required_number(const std::string& key, const Range<T>& range, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->required_number(key, range, meaning);
  record(key, std::is_integral_v<T> ? "integer" : "real", "", range_text(range.min, range.max, range.bytes, range.is_unsigned), meaning);
  if (is_describing()) return range.min;
  const YAML::Node node = state_->find(key);
  if (!node) fail_missing(key);
  return state_->number_at(key, node, range.min, range.max);
}

template <class T>
T Params::optional_number(const std::string& key, T fallback, const Range<T>& range, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->optional_number(key, fallback, range, meaning);
  if (state_->preferred.contains(key)) fallback = static_cast<T>(told(key, 0));
  record(key, std::is_integral_v<T> ? "integer" : "real", text_of(fallback),
         range_text(range.min, range.max, range.bytes, range.is_unsigned), meaning);
  const YAML::Node node = state_->find(key);
  return node ? state_->number_at(key, node, range.min, range.max) : fallback;
}

template double Params::required_number(const std::string&, const Range<double>&, const std::string&);
template long long Params::required_number(const std::string&, const Range<long long>&, const std::string&);
template double Params::optional_number(const std::string&, double, const Range<double>&, const std::string&);
template long long Params::optional_number(const std::string&, long long, const Range<long long>&, const std::string&);

std::vector<double> Params::numbers(const std::string& key, double min, double max, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->numbers(key, min, max, meaning);
  record(key, "list of reals", "", range_text(min, max), meaning);
  return state_->list_at(key, [&](const YAML::Node& item) { return state_->number_at(key, item, min, max); });
}

std::vector<std::string> Params::words(const std::string& key, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->words(key, meaning);
  record(key, "list of words", "", "", meaning);
  return state_->list_at(key, [&](const YAML::Node& item) { return state_->text_at(key, item); });
}

Params Params::child(const std::string& key, const std::string& owner) {
  if (Params* const outer = ask_outer(key)) return outer->child(key, owner);
  if (!state_->find(key).IsDefined() && !is_describing()) fail_missing(key);
  return optional_child(key, owner);
}

Params Params::optional_child(const std::string& key, const std::string& owner) {
  if (Params* const outer = ask_outer(key)) return outer->optional_child(key, owner);
  const YAML::Node node = state_->find(key);
  if (!node.IsDefined() || node.IsNull()) {
    Params none(state_->below(YAML::Node(YAML::NodeType::Map), state_->path_of(key), owner));
    none.state_->preferred = state_->preferred;
    return none;
  }
  if (!node.IsMap())
    state_->fail_key(key, node,
                     ": expected 'key: value' lines, found " + yaml_on_one_line(node) + advice_on_mapping(state_->path_of(key), node));
  return Params(state_->below(node, state_->path_of(key), owner));
}

Params Params::child_or_text(const std::string& key, const std::string& name_key, const std::string& owner) {
  if (Params* const outer = ask_outer(key)) return outer->child_or_text(key, name_key, owner);
  AskedKeys::note(state_->file->name, {state_->path_of(key), "text or mapping", "", "", ""});
  const YAML::Node node = state_->find(key);
  if (!node.IsDefined() || !node.IsScalar()) return optional_child(key, owner);
  YAML::Node map(YAML::NodeType::Map);
  map.force_insert(name_key, node);
  return Params(state_->below(map, state_->path_of(key), owner));
}

std::pair<std::string, Params> Params::named(const std::string& key, const std::string& fallback, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->named(key, fallback, meaning);
  record(key, "name, or {name: {parameters}}", fallback, "", meaning);
  const YAML::Node node = state_->find(key);
  const auto without_parameters = [&](const std::string& name) {
    if (AskedKeys::listens()) AskedKeys::note(state_->file->name, {state_->path_of(key) + "." + name, "", "", "", ""});
    Params none(state_->below(YAML::Node(YAML::NodeType::Map), state_->path_of(key) + "." + name, key + " '" + name + "'"));
    none.state_->preferred = state_->preferred;
    if (node.IsDefined()) {  // empty mappings have no place
      auto at_word = std::make_shared<ConfigFile>(*state_->file);
      at_word->name = place(state_->file->name, node.Mark());
      none.state_->file = std::move(at_word);
    }
    return std::pair{name, none};
  };
  if (!node.IsDefined()) {
    if (fallback.empty() && !is_describing()) fail_missing(key);
    return without_parameters(fallback);
  }
  if (node.IsScalar()) return without_parameters(node.Scalar());
  if (!node.IsMap() || node.size() != 1 || names_by_key(node))
    state_->fail_key(key, node, ": expected a name, or one {name: {parameters}}" + advice_on_named(key, node));
  const std::string name = node.begin()->first.Scalar();
  const YAML::Node inner = chosen_node(node.begin()->second, state_->path_of(key) + "." + name, *state_->choices);
  if (inner.IsNull()) return without_parameters(name);
  return {name, Params(state_->below(inner, state_->path_of(key) + "." + name, key + " '" + name + "'"))};
}

std::string Params::inline_text(const std::string& key, const std::string& absent) const {
  if (const Params* const outer = outer_with(key)) return outer->inline_text(key, absent);
  const YAML::Node node = state_->values.at(key);
  return node.IsDefined() ? yaml_on_one_line(chosen_node(node, state_->path_of(key), *state_->choices)) : absent;
}

std::string Params::text_of_all() const {
  YAML::Emitter out;
  out << state_->node;
  std::string text = out.c_str();
  for (const auto& [path, index] : *state_->choices)
    if (path.starts_with(state_->path)) text += "\n" + path + " " + std::to_string(index);
  return text;
}

void Params::add_asked(const Params& other) {
  for (const auto& [path, keys] : *other.state_->asked)
    if (!path.empty()) (*state_->asked)[state_->path_of(path)].insert(keys.begin(), keys.end());
}

void Params::reject_unread() const {
  if (is_bare_value(state_->node)) fail(bare_value_text(state_->path, state_->node));
  if (!state_->node.IsMap()) return;
  for (const auto& item : state_->node) {
    const std::string& key = item.first.Scalar();
    if (!state_->seen->contains(key))
      state_->fail_node(
          item.first, state_->path_of(key),
          "unknown key '" + key + "' in " + state_->owner + advice_on_unknown(key, state_->path, *state_->asked, *state_->seen));
  }
}

std::string Params::resolve_file(const std::string& path) const { return find_named_file(*state_->file, path); }

}  // namespace kvlab
