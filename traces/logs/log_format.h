#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/config/registry.h"
#include "traces/logs/real_log.h"

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

// Parsed once, on demand; Infinity and NaN become null.
class LogText {
 public:
  LogText(std::string text, std::string file);
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const std::string& text() const { return text_; }
  // As JSON, discarded if invalid.
  [[nodiscard]] const nlohmann::json& first_line() const { return first_line_; }
  // As one value, else discarded.
  [[nodiscard]] const nlohmann::json& whole() const;
  // Calls each(line, "FILE:LINE"); skips blank lines.
  void each_line(const std::function<void(const std::string& line, const std::string& where)>& each) const;
  // "FILE:3: 'a.b'": the first b after the first a.
  [[nodiscard]] std::string place_of(std::initializer_list<std::string_view> keys) const;

 private:
  std::string text_, file_;
  std::size_t first_end_;
  nlohmann::json first_line_;
  mutable std::optional<nlohmann::json> whole_;
};

// Recognised by content. No file fits two.
class LogFormat {
 public:
  virtual ~LogFormat() = default;
  [[nodiscard]] virtual bool recognises(const LogText& log) const = 0;
  // Throws InputError with file and place.
  [[nodiscard]] virtual RealLog read(const LogText& log) const = 0;
};

using LogFormatRegistry = Registry<LogFormat>;

template <bool (*recognises_it)(const LogText&), RealLog (*read_it)(const LogText&)>
class LogFormatOf final : public LogFormat {
 public:
  explicit LogFormatOf(Params& /*none*/) {}
  [[nodiscard]] bool recognises(const LogText& log) const override { return recognises_it(log); }
  [[nodiscard]] RealLog read(const LogText& log) const override { return read_it(log); }
};

// >= 0, or whole; else throws InputError("WHERE is no number >= 0: ...").
double number_in(const nlohmann::json& value, const std::string& where);
std::int64_t count_in(const nlohmann::json& value, const std::string& where);

// s, sec, ms, us or ns; else throws InputError.
double seconds_in(const nlohmann::json& value, std::string_view unit, const std::string& where);

// {"a", "b"} is object["a"]["b"]; may be null.
const nlohmann::json* member_of(const nlohmann::json& object, std::initializer_list<const char*> path);

// First text, or only text of a list; else "".
std::string text_in(const nlohmann::json& object, std::initializer_list<std::initializer_list<const char*>> paths);

// "2 of the log's 9 requests failed and are left out\n".
class LeftOut {
 public:
  void add(const std::string& what, std::size_t count = 1);
  // Adds a request with an earlier one's id; "": no id.
  bool is_repeated(const std::string& id);
  [[nodiscard]] std::string note(std::size_t num_kept) const;

 private:
  std::vector<std::pair<std::string, std::size_t>> counts_;
  std::unordered_set<std::int64_t> ids_;
};

}  // namespace kvlab
