#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvlab {

// A JSON object in a file, or one inside of it. A key whose value is null counts as absent. Every message begins with the file's path and
// names keys in full: 'rope_scaling.factor'.
class JsonConfig {
 public:
  using Json = nlohmann::json;
  // Errors (InputError): no such file or not a regular one, not a JSON object, a key twice in an object, values nested very deep.
  explicit JsonConfig(std::string path);
  [[nodiscard]] JsonConfig object(const std::string& key) const;  // error: absent, or no object

  [[nodiscard]] bool has(const std::string& key) const { return root_.contains(key) && !root_[key].is_null(); }
  [[nodiscard]] const Json& at(const std::string& key) const;     // error: absent
  [[nodiscard]] const Json* given(const std::string& key) const;  // null: the key is not there; of another than has()
  [[nodiscard]] const Json& json() const { return root_; }
  // Errors of what follows: absent where there is no default, of another type, out of range.
  [[nodiscard]] std::int32_t integer(const std::string& key, std::int32_t max) const;  // from 1
  [[nodiscard]] std::int32_t integer_or(const std::string& key, std::int32_t otherwise, std::int32_t max) const {
    return has(key) ? integer(key, max) : otherwise;
  }
  [[nodiscard]] double positive(const std::string& key) const;
  [[nodiscard]] double positive_or(const std::string& key, double otherwise) const { return has(key) ? positive(key) : otherwise; }
  [[nodiscard]] bool flag_or(const std::string& key, bool otherwise) const;
  [[nodiscard]] std::string text(const std::string& key) const;
  // For a key with only one supported value; an absent key means that value.
  void only(const std::string& key, const Json& allowed) const;
  // Error: a key that is none of `known`, with the nearest of them.
  void only_keys(const std::vector<std::string>& known) const;

  // "'key' = value is not supported; allowed: ...".
  [[noreturn]] void refuse(const std::string& key, const std::string& allowed) const;
  [[noreturn]] void fail(const std::string& message) const;

 private:
  JsonConfig(std::string path, std::string prefix, Json root)
      : path_(std::move(path)), prefix_(std::move(prefix)), root_(std::move(root)) {}

  std::string path_, prefix_;
  Json root_;
};

}  // namespace kvlab
