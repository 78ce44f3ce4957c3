#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace kvlab {

// Per-request lists of `vllm bench serve --save-detailed`. `root` and `file` outlive it.
class BenchLists {
 public:
  // All have the length of `first`. Throws InputError if it is none.
  BenchLists(const nlohmann::json& root, const std::string& file, const char* first);
  [[nodiscard]] bool has(const char* key) const { return root_.contains(key); }
  [[nodiscard]] std::size_t size() const { return list(first_).size(); }
  // i < size(). Throws InputError if missing or of another length.
  [[nodiscard]] const nlohmann::json& at(const char* key, std::size_t i) const;
  // "FILE: 'KEY', entry I+1,".
  [[nodiscard]] std::string where(const char* key, std::size_t i) const;
  // 'errors' has an entry for i.
  [[nodiscard]] bool has_error(std::size_t i) const;

 private:
  [[nodiscard]] const nlohmann::json& list(const char* key) const;

  const nlohmann::json& root_;
  const std::string& file_;
  const char* first_;
};

}  // namespace kvlab
