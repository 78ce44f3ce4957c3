#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace kvlab {

// Lists of `vllm bench serve --save-detailed`, per request. `root` and `file`, its path, outlive it.
class BenchLists {
 public:
  // All lists must have the length of `first`. Throws InputError if it is none.
  BenchLists(const nlohmann::json& root, const std::string& file, const char* first);
  [[nodiscard]] bool has(const char* key) const { return root_.contains(key); }
  [[nodiscard]] std::size_t size() const { return list(first_).size(); }
  // i < size(). Throws InputError if the list is missing or of another length.
  [[nodiscard]] const nlohmann::json& at(const char* key, std::size_t i) const;
  // "FILE: 'KEY', entry I+1,".
  [[nodiscard]] std::string where(const char* key, std::size_t i) const;
  // True if 'errors' has an entry for request i.
  [[nodiscard]] bool has_error(std::size_t i) const;

 private:
  [[nodiscard]] const nlohmann::json& list(const char* key) const;

  const nlohmann::json& root_;
  const std::string& file_;
  const char* first_;
};

}  // namespace kvlab
