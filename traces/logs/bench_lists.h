#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace kvlab {

// The lists of a result of `vllm bench serve --save-detailed`, with an entry per request. `root` and `file`, its path, must outlive it.
class BenchLists {
 public:
  // `first`: the list that every other one must be as long as. InputError where it is missing or no list.
  BenchLists(const nlohmann::json& root, const std::string& file, const char* first);
  [[nodiscard]] bool has(const char* key) const { return root_.contains(key); }
  [[nodiscard]] std::size_t size() const { return list(first_).size(); }
  // Entry i < size(). InputError where the list is missing, is no list or has another length.
  [[nodiscard]] const nlohmann::json& at(const char* key, std::size_t i) const;
  // "FILE: 'KEY', entry I+1,", as the begin of a message.
  [[nodiscard]] std::string where(const char* key, std::size_t i) const;
  // True if 'errors' has a text, or another value, for request i.
  [[nodiscard]] bool has_error(std::size_t i) const;

 private:
  [[nodiscard]] const nlohmann::json& list(const char* key) const;

  const nlohmann::json& root_;
  const std::string& file_;
  const char* first_;
};

}  // namespace kvlab
