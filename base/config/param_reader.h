#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace kvlab {

struct Choices;
struct ConfigFile;
struct ParamDefaults;
struct SimClock;

// As `kvlab describe` prints it.
struct ParamDoc {
  std::string key, type, fallback, range, meaning;
};

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

// Reads one mapping of a config key by key. Ranges include both ends. Units are part of the key (_ms, _tokens, ...). In describing mode,
// calls record their documentation and return the default.
class Params {
 public:
  Params(const std::shared_ptr<const ConfigFile>& file, std::shared_ptr<const Choices> choices, std::string owner);
  Params(const Params& other);
  Params(Params&& other) noexcept;
  Params& operator=(const Params& other);
  Params& operator=(Params&& other) noexcept;
  ~Params();
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
  template <NamedInConfigs T>
  T choice(const std::string& key, std::initializer_list<Named<std::type_identity_t<T>>> values, T fallback, const std::string& meaning);
  // Index in `names`.
  std::size_t choice(const std::string& key, const std::vector<std::string>& names, std::size_t fallback, const std::string& meaning);
  // For keys in _ms or _s, with fractions.
  template <class Clock = SimClock>
  typename Clock::duration milliseconds(const std::string& key, double fallback, double min, double max, const std::string& meaning) {
    return typename Clock::duration(nanoseconds(key, optional<double>(key, fallback, min, max, meaning), 1e-3, "1e-6"));
  }
  template <class Clock = SimClock>
  typename Clock::duration seconds(const std::string& key, double fallback, double min, double max, const std::string& meaning) {
    return typename Clock::duration(nanoseconds(key, optional<double>(key, fallback, min, max, meaning), 1, "1e-9"));
  }
  // Replaces the reader's default; flags: 0 or 1.
  void prefer(const std::string& key, long long value);
  // The value of prefer() for a key without value, else `absent`.
  [[nodiscard]] long long told(const std::string& key, long long absent) const;
  // Reads missing `keys` from `outer`, for messages and reject_unread() too. Earlier calls have priority.
  void fall_back_on(const Params& outer, const std::vector<std::string>& keys);
  template <class Keys>
  void fall_back_on(const Params& outer, const Keys& keys) {
    fall_back_on(outer, std::vector<std::string>(keys.begin(), keys.end()));
  }
  // reject_unread() accepts these keys unread.
  void allow(const std::vector<std::string>& keys);
  template <class Keys>
  void allow(const Keys& keys) {
    allow(std::vector<std::string>(keys.begin(), keys.end()));
  }
  // Data, not a sweep axis; needs an entry in kDataLists.
  std::vector<double> numbers(const std::string& key, double min, double max, const std::string& meaning);

  std::vector<std::string> words(const std::string& key, const std::string& meaning);

  [[nodiscard]] bool has(const std::string& key) const;
  // Not in outer mappings.
  [[nodiscard]] bool has_own(const std::string& key) const;
  // `key` is a mapping with `inner`.
  [[nodiscard]] bool has_within(const std::string& key, const std::string& inner) const;
  // Absent optional children are empty.
  Params child(const std::string& key, const std::string& owner);
  Params optional_child(const std::string& key, const std::string& owner);
  // Also accepts `key: text` for `key: {name_key: text}`.
  Params child_or_text(const std::string& key, const std::string& name_key, const std::string& owner);
  // `key: name` or `key: {name: {parameters}}`.
  std::pair<std::string, Params> named(const std::string& key, const std::string& fallback, const std::string& meaning);

  // InputError with file:line:column of the mapping or of `key`.
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_at(const std::string& key, const std::string& message) const;
  // InputErrors of a file named by `key` get its place.
  template <class Act>
  auto reading(const std::string& key, Act act) const {
    try {
      return act();
    } catch (const InputError& e) {
      fail_at(key, e.what());
    }
  }
  void reject_unread() const;
  // reject_unread() also advises on nested keys of `other`, from another file.
  void add_asked(const Params& other);

  [[nodiscard]] const std::string& owner() const;
  [[nodiscard]] const std::string& path() const;
  // "path = value" for every default used, also below.
  [[nodiscard]] const ParamDefaults& defaults() const;
  [[nodiscard]] bool is_describing() const;
  [[nodiscard]] std::vector<std::string> keys() const;
  // YAML with the chosen elements of lists: equal texts, equal parameters.
  [[nodiscard]] std::string text_of_all() const;
  // One line of YAML, or `absent`.
  [[nodiscard]] std::string inline_text(const std::string& key, const std::string& absent) const;
  // As find_named_file.
  [[nodiscard]] std::string resolve_file(const std::string& path) const;

 private:
  struct State;
  template <class T>
  struct Range {
    T min, max;
    std::size_t bytes;  // of the caller's type
    bool is_unsigned;
  };
  template <class T>
  static auto range_of(T min, T max) {
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, long long>;
    return Range<Wide>{static_cast<Wide>(min), static_cast<Wide>(max), sizeof(T), std::is_unsigned_v<T>};
  }
  explicit Params(std::unique_ptr<State> state);
  // fall_back_on()'s mapping with the key; null: this one.
  [[nodiscard]] Params* outer_with(const std::string& key) const;
  // Also notes that the key was asked for.
  [[nodiscard]] Params* ask_outer(const std::string& key) const;
  [[noreturn]] void fail_missing(const std::string& key) const;
  void record(const std::string& key, const std::string& type, const std::string& fallback, const std::string& range,
              const std::string& meaning);
  // T: double or long long.
  template <class T>
  T required_number(const std::string& key, const Range<T>& range, const std::string& meaning);
  template <class T>
  T optional_number(const std::string& key, T fallback, const Range<T>& range, const std::string& meaning);
  // `value` times in_s seconds. Refuses times that round to 0.
  [[nodiscard]] long long nanoseconds(const std::string& key, double value, double in_s, const char* smallest) const;

  std::unique_ptr<State> state_;
};

// ---- templates ----

template <class T>
T Params::required(const std::string& key, T min, T max, const std::string& meaning) {
  return static_cast<T>(required_number(key, range_of(min, max), meaning));
}

template <class T>
T Params::optional(const std::string& key, T fallback, T min, T max, const std::string& meaning) {
  const auto range = range_of(min, max);
  return static_cast<T>(optional_number(key, static_cast<decltype(range.min)>(fallback), range, meaning));
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
