#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/registry.h"
#include "traces/logs/real_log.h"

namespace kvlab {

// A file of measured latencies, as formats look at it. JSON is parsed once, and only where a format asks for it; Infinity and NaN, which
// Python's json writes, are null.
class LogText {
 public:
  LogText(std::string text, std::string file);
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const std::string& text() const { return text_; }
  // The first line as JSON; discarded where it is none.
  [[nodiscard]] const nlohmann::json& first_line() const { return first_line_; }
  // The file as one JSON value; discarded where it is none, or has one value per line.
  [[nodiscard]] const nlohmann::json& whole() const;

 private:
  std::string text_, file_;
  std::size_t first_end_;
  nlohmann::json first_line_;
  mutable std::optional<nlohmann::json> whole_;
};

// The file format of a load generator's or an engine's measurements, told by its content. No two formats recognise one file.
class LogFormat {
 public:
  virtual ~LogFormat() = default;
  [[nodiscard]] virtual bool recognises(const LogText& log) const = 0;
  // InputError with the file and the place in it for a value that cannot be.
  [[nodiscard]] virtual RequestLog read(const LogText& log) const = 0;
};

using LogFormatRegistry = Registry<LogFormat>;

// A number >= 0, or a whole one; InputError("WHERE is no number >= 0: ...").
double number_in(const nlohmann::json& value, const std::string& where);
std::int64_t count_in(const nlohmann::json& value, const std::string& where);

// A time in seconds from a number and its unit (s, sec, ms, us, ns); InputError on another unit.
double seconds_in(const nlohmann::json& value, std::string_view unit, const std::string& where);

// A member of an object, at any depth: {"a", "b"} is object["a"]["b"]. Null where there is none, or where it is null.
const nlohmann::json* member_of(const nlohmann::json& object, std::initializer_list<const char*> path);

// The text at one of these paths in an object, the first that is there, or the one text of a list there; "": there is none.
std::string text_in(const nlohmann::json& object, std::initializer_list<std::initializer_list<const char*>> paths);

// Lines on requests that are not compared: "2 of the log's 9 requests failed and are left out\n".
class LeftOut {
 public:
  void add(const std::string& what, std::size_t count = 1);
  [[nodiscard]] std::string note(std::size_t num_kept) const;

 private:
  std::vector<std::pair<std::string, std::size_t>> counts_;  // in the order in which they were met
};

}  // namespace kvlab
