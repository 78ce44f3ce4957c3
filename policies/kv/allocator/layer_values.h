#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "policies/kv/allocator/counts.h"

namespace kvlab {

// A value per layer ("0=0.5 1=0.2"), or empty.
class LayerValues {
 public:
  // word: in messages. Throws InputError at `key` for values outside [min, max] or of a KV head.
  LayerValues(Params& p, std::string key, double min, double max, const std::string& word)
      : key_(std::move(key)), entries_(read_table(p, key_, true, min, max, "LAYER=" + word + " for every layer; empty: all alike")) {
    for (const TableEntry& e : entries_)
      if (e.head >= 0) p.fail_at(key_, fmt::format("'{}' is a layer's: LAYER={}", key_, word));
  }

  // "" or why the values do not fit.
  [[nodiscard]] std::string refuses(const ModelShape& model) const {
    for (std::int32_t l = 0; l < model.num_layers && !is_empty(); ++l)
      if (find_entry(entries_, l, -1) == nullptr) return fmt::format("'{}' has no value for layer {}", key_, l);
    return refuses_table(entries_, key_, model);
  }
  [[nodiscard]] bool is_empty() const { return entries_.empty(); }
  [[nodiscard]] double of(std::int32_t layer) const { return find_entry(entries_, layer, -1)->value; }
  // Not for an empty table.
  [[nodiscard]] std::pair<double, double> range() const {
    const auto below = [](const TableEntry& a, const TableEntry& b) { return a.value < b.value; };
    const auto [low, high] = std::minmax_element(entries_.begin(), entries_.end(), below);
    return {low->value, high->value};
  }

 private:
  std::string key_;
  std::vector<TableEntry> entries_;
};

}  // namespace kvlab
