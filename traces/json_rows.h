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
#include "traces/line_reader.h"

namespace kvlab {

// Text between quotes, as UTF-8. Lone surrogates become U+FFFD.
std::string decode_json_text(std::string_view escaped);

// Code points.
std::size_t num_characters(std::string_view utf8);

enum class UnknownKeys : std::uint8_t { kRefuse, kPassOver };

// Can be read once.
class JsonField {
 public:
  JsonField(const InputPlace& lines, IgnoredColumns& ignored, std::string_view key, simdjson::ondemand::value value)
      : lines_(&lines), ignored_(&ignored), key_(key), value_(value) {}

  std::int64_t integer(std::int64_t min, std::int64_t max, std::string_view hint = "");
  std::int32_t prompt_tokens();
  std::int32_t output_tokens();
  Span time(std::int64_t unit_ns);
  // From the trace's start (up to ten years) or since 1970.
  std::int64_t time_or_instant_ns(std::int64_t unit_ns);
  // Since 1970.
  std::int64_t instant_ns(std::int64_t unit_ns);
  std::string_view text();
  std::string lenient_text();
  [[nodiscard]] bool is_null() { return value_.is_null(); }
  [[nodiscard]] bool is_text() { return value_.type() == simdjson::ondemand::json_type::string; }
  std::string raw_text();
  // Number or text.
  std::int64_t session();
  std::string name();
  // Integers from 0, or texts (digits as the number, others as a 63-bit hash).
  void id_list(std::vector<std::uint64_t>& to);
  // Appends integers >= 0.
  void unsigned_list(std::vector<std::uint64_t>& to);
  void time_list(std::int64_t unit_ns, std::vector<Span>& to);
  // Calls handle(key index, field) per field of each listed object, and done() per object.
  template <class Handle, class Done>
  void each_object(std::span<const std::string_view> keys, Handle&& handle, Done&& done);
  template <class Handle>
  void each_name(Handle&& handle);
  // kPassOver: skips unknown keys.
  template <class Handle>
  void object(std::span<const std::string_view> keys, UnknownKeys unknown, Handle&& handle);

  [[noreturn]] void fail(const std::string& message) const { lines_->fail(key_, message); }

 private:
  std::string_view scalar_text();
  void append_unsigned(simdjson::ondemand::value item, std::vector<std::uint64_t>& to);

  const InputPlace* lines_;
  IgnoredColumns* ignored_;
  std::string_view key_;
  simdjson::ondemand::value value_;
};

// Refuses repeated keys, and unknown ones unless `ignored` takes them.
class JsonRows {
 public:
  JsonRows(std::unique_ptr<LineReader> lines, IgnoredColumns& ignored) : lines_(std::move(lines)), ignored_(&ignored) {}

  // Calls handle(index in keys, JsonField) per field; false at the end.
  template <class Handle>
  bool next(std::span<const std::string_view> keys, Handle&& handle);
  [[nodiscard]] const InputPlace& lines() const { return *lines_; }

 private:
  std::unique_ptr<LineReader> lines_;
  IgnoredColumns* ignored_;
  simdjson::ondemand::parser parser_{LineReader::kMaxLineBytes + 1};
};

[[noreturn]] void fail_syntax(const InputPlace& lines, const char* what);
inline void fail_missing_key(const InputPlace& lines, std::string_view key) { lines.fail(key, "missing in this row"); }

template <class Handle>
void each_field(const InputPlace& lines, IgnoredColumns& ignored, simdjson::ondemand::object object, std::span<const std::string_view> keys,
                Handle&& handle, UnknownKeys unknown = UnknownKeys::kRefuse) {
  std::uint64_t seen = 0;
  for (simdjson::ondemand::field field : object) {
    lines.reached(field.key().raw());
    const std::string_view key = field.unescaped_key();
    std::size_t i = 0;
    while (i < keys.size() && keys[i] != key) ++i;
    if (i == keys.size()) {
      if (unknown == UnknownKeys::kRefuse) ignored.pass_over(lines, key, keys);
      continue;
    }
    if ((seen >> i & 1) != 0) lines.fail(key, "appears twice in this row");
    seen |= std::uint64_t{1} << i;
    handle(i, JsonField(lines, ignored, keys[i], field.value()));
  }
}

template <class Handle, class Done>
void JsonField::each_object(std::span<const std::string_view> keys, Handle&& handle, Done&& done) {
  if (value_.type() != simdjson::ondemand::json_type::array) fail("expected a list of objects");
  for (simdjson::ondemand::object object : value_.get_array()) {
    each_field(*lines_, *ignored_, object, keys, handle);
    done();
  }
}

template <class Handle>
void JsonField::each_name(Handle&& handle) {
  if (value_.type() != simdjson::ondemand::json_type::array) fail("expected a list");
  for (simdjson::ondemand::value item : value_.get_array()) {
    const bool is_text = item.type() == simdjson::ondemand::json_type::string;
    handle(JsonField(*lines_, *ignored_, key_, item).name(), is_text);
  }
}

template <class Handle>
void JsonField::object(std::span<const std::string_view> keys, UnknownKeys unknown, Handle&& handle) {
  if (value_.type() != simdjson::ondemand::json_type::object) fail("expected an object in braces");
  each_field(*lines_, *ignored_, value_.get_object(), keys, handle, unknown);
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

// JSON objects over any lines: a document, JSON lines, or a list's elements. Checks keys as JsonRows; messages name the last field's line.
class JsonDocuments {
 public:
  JsonDocuments(std::unique_ptr<LineReader> lines, IgnoredColumns& ignored) : place_(std::move(lines)), ignored_(&ignored) {}

  // Calls handle(index in keys, JsonField) per field of the next object; false at the end.
  template <class Handle>
  bool next(std::span<const std::string_view> keys, Handle&& handle);
  [[nodiscard]] const InputPlace& lines() const { return place_; }

 private:
  class Place final : public InputPlace {
   public:
    explicit Place(std::unique_ptr<LineReader> lines) : lines_(std::move(lines)) {}
    [[nodiscard]] const std::string& name() const override { return lines_->name(); }
    [[nodiscard]] std::int64_t line_number() const override;
    // False at the end.
    bool take_object();
    [[nodiscard]] const std::string& text() const { return text_; }

   private:
    // To the next {; false at the end.
    bool find_object();
    void take_until_closed();
    bool refill();

    std::unique_ptr<LineReader> lines_;
    std::string_view bytes_;       // not yet taken
    std::string text_;             // of the object
    std::int64_t line_ = 1;        // of bytes_
    std::int64_t first_line_ = 1;  // of text_
    bool is_list_ = false, is_over_ = false;
  };

  Place place_;
  IgnoredColumns* ignored_;
  simdjson::ondemand::parser parser_{std::size_t{1} << 32};
};

template <class Handle>
bool JsonDocuments::next(std::span<const std::string_view> keys, Handle&& handle) {
  if (!place_.take_object()) return false;
  try {
    static_assert(LineReader::kPadding >= simdjson::SIMDJSON_PADDING);
    const std::string& text = place_.text();
    simdjson::ondemand::document row = parser_.iterate(text.data(), text.size(), text.capacity());
    each_field(place_, *ignored_, row.get_object(), keys, handle);
  } catch (const simdjson::simdjson_error& e) {
    fail_syntax(place_, syntax_words(e.error()));
  }
  return true;
}

}  // namespace kvlab
