#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/axes.h"
#include "base/config_file.h"
#include "base/error.h"
#include "base/text.h"
#include "base/time.h"

namespace kvlab {

// One parameter as `kvlab describe` prints it.
struct ParamDoc {
  std::string key, type, fallback, range, meaning;
};

// Types whose values have names in configs, for Params::choice.
template <class T>
concept NamedInConfigs = std::is_enum_v<T> || std::is_same_v<T, bool>;
template <class T>
struct Named {
  const char* name;
  T value;
};
template <class T>
constexpr const char* name_of(std::initializer_list<Named<T>> all, T value) {
  for (const Named<T>& one : all)
    if (one.value == value) return one.name;
  return "";
}

// Reads one mapping of a config file key by key. Each read states type, default, range and meaning; the ranges include both
// ends. Units are part of the key (_ms, _tokens, _bytes, ...). After the last read, reject_unread() refuses every key that
// was never read, and says where it belongs if another mapping, read before, knows it. In describing mode nothing is read: each call
// records its documentation and returns the default.
class Params {
 public:
  Params(const std::shared_ptr<const ConfigFile>& file, std::shared_ptr<const Choices> choices, std::string owner);
  static Params from_text(const std::string& yaml, const std::string& owner = "test");  // for tests and tools
  static Params empty(const std::string& owner) { return from_text("{}", owner); }
  static Params describing(const std::string& owner, std::vector<ParamDoc>& docs);

  template <class T>
  T required(const std::string& key, T min, T max, const std::string& meaning);
  template <class T>
  T optional(const std::string& key, T fallback, T min, T max, const std::string& meaning);
  bool flag(const std::string& key, bool fallback, const std::string& meaning);
  std::string text(const std::string& key, const std::string& meaning);
  std::string text(const std::string& key, const std::string& fallback, const std::string& meaning);
  // The value of the name that is given.
  template <NamedInConfigs T>
  T choice(const std::string& key, std::initializer_list<Named<std::type_identity_t<T>>> values, T fallback, const std::string& meaning);
  // The index of one of `names`, for names that are known when the program runs.
  std::size_t choice(const std::string& key, const std::vector<std::string>& names, std::size_t fallback, const std::string& meaning);
  // Keys that end in _ms or _s; the value may have a fraction.
  Span milliseconds(const std::string& key, double fallback, double min, double max, const std::string& meaning);
  Span seconds(const std::string& key, double fallback, double min, double max, const std::string& meaning);
  // A default that follows from the rest of the experiment, of a whole number or (0, 1) of a flag: it takes the place of the reader's own.
  void prefer(const std::string& key, long long value) { preferred_[key] = value; }
  // The value that prefer() set for a key that no file has: a fact of the experiment. `absent`: it was not set.
  [[nodiscard]] long long told(const std::string& key, long long absent) const {
    const auto found = preferred_.find(key);
    return found == preferred_.end() ? absent : found->second;
  }
  // Those of `keys` that this mapping lacks are read from `outer` where it has them: messages then name their place there, and they count
  // as read there. The earliest of several calls goes first.
  void fall_back_on(const Params& outer, std::set<std::string> keys);
  // reject_unread() lets these keys pass, read or not.
  void allow(const std::set<std::string>& keys) { seen_->insert(keys.begin(), keys.end()); }
  // A list that is data, not a sweep axis (the reader of the file must know it: see kDataLists).
  std::vector<double> numbers(const std::string& key, double min, double max, const std::string& meaning);

  std::vector<std::string> words(const std::string& key, const std::string& meaning);

  [[nodiscard]] bool has(const std::string& key) const { return has_own(key) || outer_with(key) != nullptr; }
  // The key is in this mapping itself.
  [[nodiscard]] bool has_own(const std::string& key) const;
  // A mapping below this one; an absent optional child is empty.
  Params child(const std::string& key, const std::string& owner);
  Params optional_child(const std::string& key, const std::string& owner);
  // The same where `key: text` is short for `key: {name_key: text}`.
  Params child_or_text(const std::string& key, const std::string& name_key, const std::string& owner);
  // `key: name` or `key: {name: {parameters}}`: the way every policy is chosen.
  std::pair<std::string, Params> named(const std::string& key, const std::string& fallback, const std::string& meaning);

  // Stops with file:line:column of this mapping, or of the value of `key`.
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_at(const std::string& key, const std::string& message) const;
  // Errors (InputError) of a file that the value of `key` names say where it is named.
  template <class Act>
  auto reading(const std::string& key, Act act) const {
    try {
      return act();
    } catch (const InputError& e) {
      fail_at(key, e.what());
    }
  }
  void reject_unread() const;
  // The advice of reject_unread() then also covers keys that `other`, read from a file of its own, asked for below its top level.
  void add_asked(const Params& other);

  [[nodiscard]] const std::string& owner() const { return owner_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  // "path = value" for every default that was used because the config does not say otherwise, here and in mappings below.
  [[nodiscard]] const std::map<std::string, std::string>& defaults() const { return *defaults_; }
  [[nodiscard]] bool is_describing() const { return docs_ != nullptr; }
  [[nodiscard]] std::vector<std::string> keys() const;
  // This mapping as YAML text, with the chosen element of every list: equal texts, equal parameters.
  [[nodiscard]] std::string text_of_all() const;
  // The value of `key` as YAML on one line, `absent` where there is none.
  [[nodiscard]] std::string inline_text(const std::string& key, const std::string& absent) const;
  // The path of a file named in this config, see find_named_file.
  [[nodiscard]] std::string resolve_file(const std::string& path) const;

 private:
  Params(std::shared_ptr<const ConfigFile> file, std::shared_ptr<const Choices> choices, const YAML::Node& node, std::string path,
         std::string owner);
  [[noreturn]] void fail_missing(const std::string& key) const;
  // Appended to the message on an unknown key: our name for another engine's key, the places where it was asked for, or the nearest key
  // here.
  [[nodiscard]] std::string advice(const std::string& key) const;
  // A mapping of the same file below this one.
  [[nodiscard]] Params below(const YAML::Node& node, const std::string& path, const std::string& owner) const;
  // The mapping of fall_back_on() that the key is read from; null: this one.
  [[nodiscard]] Params* outer_with(const std::string& key) const;
  // The same, and notes that the key was asked for here.
  [[nodiscard]] Params* ask_outer(const std::string& key) const;
  [[nodiscard]] YAML::Node find(const std::string& key) const;  // the chosen element where the value is a list
  [[nodiscard]] std::string path_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  [[noreturn]] void fail_node(const YAML::Node& node, const std::string& path, const std::string& message) const;
  long long integer_at(const std::string& key, const YAML::Node& node, long long min, long long max) const;
  double real_at(const std::string& key, const YAML::Node& node, double min, double max) const;
  std::string text_at(const std::string& key, const YAML::Node& node) const;
  void record(const std::string& key, const std::string& type, const std::string& fallback, const std::string& range,
              const std::string& meaning);
  template <class T>
  T value_at(const std::string& key, const YAML::Node& node, T min, T max) const;
  template <class T>
  static std::string range_text(T min, T max) {
    const auto end = [](T v) {
      if constexpr (std::is_floating_point_v<T>) return number_text(static_cast<double>(v));
      return std::to_string(v);
    };
    return "[" + end(min) + ", " + (max == std::numeric_limits<T>::max() ? "..." : end(max)) + "]";
  }
  template <class T>
  static const char* type_name() {
    return std::is_floating_point_v<T> ? "real" : "integer";
  }

  std::shared_ptr<const ConfigFile> file_;
  std::shared_ptr<const Choices> choices_;
  YAML::Node node_;
  std::string path_, owner_;
  std::shared_ptr<std::set<std::string>> seen_ = std::make_shared<std::set<std::string>>();
  // Path of a mapping -> keys asked for in it so far; of all mappings of the file.
  std::shared_ptr<std::map<std::string, std::set<std::string>>> asked_ = std::make_shared<std::map<std::string, std::set<std::string>>>();
  std::shared_ptr<std::map<std::string, std::string>> defaults_ = std::make_shared<std::map<std::string, std::string>>();
  std::map<std::string, long long> preferred_;  // of prefer()
  struct Outer {
    std::shared_ptr<Params> params;
    std::set<std::string> keys;
  };
  std::vector<Outer> outer_;  // of fall_back_on()
  std::vector<ParamDoc>* docs_ = nullptr;
};

// ---- templates ----

template <class T>
T Params::value_at(const std::string& key, const YAML::Node& node, T min, T max) const {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(real_at(key, node, static_cast<double>(min), static_cast<double>(max)));
  } else {
    return static_cast<T>(integer_at(key, node, static_cast<long long>(min), static_cast<long long>(max)));
  }
}

template <class T>
T Params::required(const std::string& key, T min, T max, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->required<T>(key, min, max, meaning);
  record(key, type_name<T>(), "", range_text(min, max), meaning);
  if (is_describing()) return min;
  const YAML::Node node = find(key);
  if (!node) fail_missing(key);
  return value_at(key, node, min, max);
}

template <class T>
T Params::optional(const std::string& key, T fallback, T min, T max, const std::string& meaning) {
  if (Params* const outer = ask_outer(key)) return outer->optional<T>(key, fallback, min, max, meaning);
  if (const auto preferred = preferred_.find(key); preferred != preferred_.end()) fallback = static_cast<T>(preferred->second);
  if constexpr (std::is_floating_point_v<T>) {
    record(key, type_name<T>(), number_text(static_cast<double>(fallback)), range_text(min, max), meaning);
  } else {
    record(key, type_name<T>(), std::to_string(fallback), range_text(min, max), meaning);
  }
  const YAML::Node node = find(key);
  return node ? value_at(key, node, min, max) : fallback;
}

template <NamedInConfigs T>
T Params::choice(const std::string& key, std::initializer_list<Named<std::type_identity_t<T>>> values, T fallback,
                 const std::string& meaning) {
  std::vector<std::string> names;
  std::size_t at = 0;
  for (const Named<T>& one : values) {
    if (one.value == fallback) at = names.size();
    names.emplace_back(one.name);
  }
  return values.begin()[choice(key, names, at, meaning)].value;
}

}  // namespace kvlab
