#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvlab {

// Null: absent. Messages have path and full key: 'rope_scaling.factor'.
class JsonConfig {
 public:
  using Json = nlohmann::json;
  // Throws InputError for a missing file, no JSON object, duplicate keys or deep nesting.
  explicit JsonConfig(std::string path);
  [[nodiscard]] JsonConfig object(const std::string& key) const;  // throws if absent or no object

  [[nodiscard]] bool has(const std::string& key) const { return root_.contains(key) && !root_[key].is_null(); }
  [[nodiscard]] const Json& at(const std::string& key) const;     // throws if absent
  [[nodiscard]] const Json* given(const std::string& key) const;  // null: absent; unlike has(), null values count
  [[nodiscard]] const Json& json() const { return root_; }
  // Throw for an absent key without default, wrong type or range.
  [[nodiscard]] std::int32_t integer(const std::string& key, std::int32_t max) const;  // from 1
  [[nodiscard]] std::int32_t integer_or(const std::string& key, std::int32_t otherwise, std::int32_t max) const {
    return has(key) ? integer(key, max) : otherwise;
  }
  [[nodiscard]] double positive(const std::string& key) const;
  [[nodiscard]] double positive_or(const std::string& key, double otherwise) const { return has(key) ? positive(key) : otherwise; }
  [[nodiscard]] bool flag_or(const std::string& key, bool otherwise) const;
  [[nodiscard]] std::string text(const std::string& key) const;
  // The default is the one supported value.
  void only(const std::string& key, const Json& allowed) const;
  // Throws for other keys.
  void only_keys(const std::vector<std::string>& known) const;

  // Throws "'key' = value is not supported; allowed: ...".
  [[noreturn]] void refuse(const std::string& key, const std::string& allowed) const;
  [[noreturn]] void fail(const std::string& message) const;

 private:
  JsonConfig(std::string path, std::string prefix, Json root)
      : path_(std::move(path)), prefix_(std::move(prefix)), root_(std::move(root)) {}

  std::string path_, prefix_;
  Json root_;
};

}  // namespace kvlab
