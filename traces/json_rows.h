#pragma once

#include <simdjson.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_words.h"
#include "base/time.h"
#include "traces/ignored_columns.h"
#include "traces/line_reader.h"

namespace kvlab {

// One value of a JSON row and the words that messages need for it. Each can be read once.
class JsonField {
 public:
  JsonField(const LineReader& lines, IgnoredColumns& ignored, std::string_view key, simdjson::ondemand::value value)
      : lines_(&lines), ignored_(&ignored), key_(key), value_(value) {}

  std::int64_t integer(std::int64_t min, std::int64_t max, std::string_view hint = "");
  std::int32_t prompt_tokens();
  std::int32_t output_tokens();
  Span time(std::int64_t unit_ns);
  std::string_view text();
  // A session's number from a number or a text.
  std::int64_t session();
  // Appends a list of whole numbers >= 0.
  void unsigned_list(std::vector<std::uint64_t>& to);
  // Calls handle(key index, field) for each field of each object in a list, and done() after each object.
  template <class Handle, class Done>
  void each_object(std::span<const std::string_view> keys, Handle&& handle, Done&& done);

  [[noreturn]] void fail(const std::string& message) const { lines_->fail(key_, message); }

 private:
  std::string_view scalar_text();

  const LineReader* lines_;
  IgnoredColumns* ignored_;
  std::string_view key_;
  simdjson::ondemand::value value_;
};

// Rows of a file with one JSON object per line. Keys given twice are refused, and unknown ones but for those that `ignored` takes.
class JsonRows {
 public:
  JsonRows(std::unique_ptr<LineReader> lines, IgnoredColumns& ignored) : lines_(std::move(lines)), ignored_(&ignored) {}

  // Reads one row, calling handle(index in keys, JsonField) for every field; false at the end of the file.
  template <class Handle>
  bool next(std::span<const std::string_view> keys, Handle&& handle);
  [[nodiscard]] const LineReader& lines() const { return *lines_; }

 private:
  std::unique_ptr<LineReader> lines_;
  IgnoredColumns* ignored_;
  simdjson::ondemand::parser parser_{LineReader::kMaxLineBytes + 1};
};

[[noreturn]] void fail_syntax(const LineReader& lines, const char* what);
inline void fail_missing_key(const LineReader& lines, std::string_view key) { lines.fail(key, "missing in this row"); }

// ---- templates ----

template <class Handle>
void each_field(const LineReader& lines, IgnoredColumns& ignored, simdjson::ondemand::object object, std::span<const std::string_view> keys,
                Handle&& handle) {
  std::uint64_t seen = 0;
  for (simdjson::ondemand::field field : object) {
    const std::string_view key = field.unescaped_key();
    std::size_t i = 0;
    while (i < keys.size() && keys[i] != key) ++i;
    if (i == keys.size()) {
      ignored.pass_over(lines, key, keys);
      continue;
    }
    if ((seen >> i & 1) != 0) lines.fail(key, "appears twice in this row");
    seen |= std::uint64_t{1} << i;
    handle(i, JsonField(lines, ignored, keys[i], field.value()));
  }
}

template <class Handle, class Done>
void JsonField::each_object(std::span<const std::string_view> keys, Handle&& handle, Done&& done) {
  for (simdjson::ondemand::object object : value_.get_array()) {
    each_field(*lines_, *ignored_, object, keys, handle);
    done();
  }
}

template <class Handle>
bool JsonRows::next(std::span<const std::string_view> keys, Handle&& handle) {
  std::string_view line;
  if (!lines_->next(line)) return false;
  try {
    if (line[line.find_first_not_of(" \t")] != '{') fail_syntax(*lines_, "the line does not begin with {");
    static_assert(LineReader::kPadding >= simdjson::SIMDJSON_PADDING);
    simdjson::ondemand::document row = parser_.iterate(line.data(), line.size(), line.size() + LineReader::kPadding);
    each_field(*lines_, *ignored_, row.get_object(), keys, handle);
    if (row.current_location().error() == simdjson::SUCCESS) fail_syntax(*lines_, "text behind the closing brace");
  } catch (const simdjson::simdjson_error& e) {
    fail_syntax(*lines_, syntax_words(e.error()));
  }
  return true;
}

}  // namespace kvlab
