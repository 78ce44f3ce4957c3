#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

class InputPlace;

// Columns that a format does not have and that a reader passes over: those that describe a request without changing how it is
// served (request_id, type, model, user, ...), and those that the user names with `ignore_columns`. Any other is an error.
class IgnoredColumns {
 public:
  explicit IgnoredColumns(std::vector<std::string> asked = {}) : asked_(std::move(asked)) {}

  // Notes `column`, or stops with the place and the nearest of `known`.
  void pass_over(const InputPlace& at, std::string_view column, std::span<const std::string_view> known);
  // "2 columns ignored: type, duration"; "" where there was none.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::string> asked_, found_;
};

}  // namespace kvlab
