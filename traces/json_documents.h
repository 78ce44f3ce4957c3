#pragma once

#include <simdjson.h>

#include <memory>
#include <string>

#include "traces/json_rows.h"

namespace kvlab {

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
