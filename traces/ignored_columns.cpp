#include "traces/ignored_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "traces/line_reader.h"

namespace kvlab {

namespace {

constexpr auto kHarmless = std::to_array<std::string_view>(
    {"id",         "request_id", "req_id",   "uuid",    "index",     "name",   "type", "request_type", "turn",   "model",
     "model_name", "user",       "user_id",  "client",  "client_id", "tenant", "app",  "app_id",       "region", "duration",
     "source",     "category",   "language", "comment", "dataset",   "label",  "tag",  "tags"});

}  // namespace

void IgnoredColumns::pass_over(const InputPlace& at, std::string_view column, std::span<const std::string_view> known) {
  if (std::ranges::find(found_, column) != found_.end()) return;
  if (std::ranges::find(kHarmless, column) == kHarmless.end() && std::ranges::find(asked_, column) == asked_.end()) {
    const std::vector<std::string> names(known.begin(), known.end());
    const std::string_view shown = column.substr(0, 64);
    at.fail("unknown column " + quoted(column) + suggestion(shown, names) +
            (nearest_name(shown, names).empty() ? "; 'ignore_columns' passes over those that it names" : ""));
  }
  found_.emplace_back(column);
}

std::string IgnoredColumns::text() const {
  if (found_.empty()) return "";
  return fmt::format("{} column{} ignored: {}", found_.size(), found_.size() == 1 ? "" : "s", join(found_, ", "));
}

}  // namespace kvlab
