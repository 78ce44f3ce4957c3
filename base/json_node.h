#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace kvlab {

// InputErrors name file and key: "DIR/tokenizer.json: 'decoder.decoders[2].content': ...". Refers to the value.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& root, const std::string& file);

  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return *file_; }
  bool is_null() const;
  bool has(const std::string& key) const;       // present and not null
  JsonNode at(const std::string& key) const;    // throws if absent; may be null
  JsonNode find(const std::string& key) const;  // null if absent
  std::vector<JsonNode> elements() const;       // of a list

  std::string text() const;
  std::string text(const std::string& key) const { return at(key).text(); }
  double number() const;
  std::int32_t integer(std::int32_t min, std::int32_t max) const;
  std::vector<std::int32_t> integers(std::int32_t min, std::int32_t max) const;
  bool flag(const std::string& key, bool otherwise) const;
  // Throws for other keys.
  void only_keys(const std::vector<std::string>& known) const;
  // "type", one of `supported`.
  std::string type(const std::vector<std::string>& supported) const;

  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_value(const std::string& allowed) const;  // "'key' = VALUE is not supported; supported: ALLOWED"

 private:
  JsonNode(const nlohmann::json& value, std::shared_ptr<const std::string> file, std::string key, int depth);

  const nlohmann::json* value_;
  std::shared_ptr<const std::string> file_;
  std::string key_;
  int depth_ = 0;
};

}  // namespace kvlab
