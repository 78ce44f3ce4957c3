#include "traces/logs/bench_lists.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json_text.h"

namespace kvlab {

BenchLists::BenchLists(const nlohmann::json& root, const std::string& file, const char* first) : root_(root), file_(file), first_(first) {
  (void)list(first);
}

const nlohmann::json& BenchLists::list(const char* key) const {
  const auto found = root_.find(key);
  if (found == root_.end()) throw InputError(fmt::format("{}: has '{}', and no '{}'", file_, first_, key));
  if (!found->is_array()) throw InputError(fmt::format("{}: '{}' is no list: {}", file_, key, short_json(*found)));
  return *found;
}

const nlohmann::json& BenchLists::at(const char* key, std::size_t i) const {
  const nlohmann::json& values = list(key);
  if (values.size() != size()) throw InputError(fmt::format("{}: '{}' has {} entries, '{}' {}", file_, key, values.size(), first_, size()));
  return values[i];
}

std::string BenchLists::where(const char* key, std::size_t i) const { return fmt::format("{}: '{}', entry {},", file_, key, i + 1); }

bool BenchLists::has_error(std::size_t i) const {
  if (!has("errors")) return false;
  const nlohmann::json& error = at("errors", i);
  const bool is_empty_text = error.is_string() && error.get_ref<const std::string&>().empty();
  return !error.is_null() && !is_empty_text;
}

}  // namespace kvlab
