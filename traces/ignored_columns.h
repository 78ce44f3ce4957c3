#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

class InputPlace;

// Those without effect on serving (request_id, type, model, user, ...) and `ignore_columns`.
class IgnoredColumns {
 public:
  explicit IgnoredColumns(std::vector<std::string> asked = {}) : asked_(std::move(asked)) {}

  // Throws with the nearest of `known` for others.
  void pass_over(const InputPlace& at, std::string_view column, std::span<const std::string_view> known);
  // "2 columns ignored: type, duration", or "".
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::string> asked_, found_;
};

}  // namespace kvlab
