#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/results/view.h"

namespace kvlab {

// "sarathi" of "sarathi#2"; "" without a place.
std::string entry_base(const std::string& label);

// In a run.
struct EntryForm {
  std::vector<std::pair<std::string, std::string>> set;  // path in the entry -> value, in order
  std::map<std::string, std::string> defaults;
  bool is_read = false;  // resolved.yaml was readable

  // Value or default, or "".
  [[nodiscard]] std::string value_of(const std::string& key) const;
};

// Over its label's runs. Defaults may depend on another axis; joined folders may reuse a label.
struct ListEntry {
  std::string label;
  std::vector<EntryForm> forms;  // in row order
  std::set<std::string> axes;    // paths in the entry that are lists

  [[nodiscard]] bool is_known() const;
  // Includes mappings around the key.
  [[nodiscard]] bool is_axis(const std::string& key) const;
  [[nodiscard]] bool varies(const std::string& key) const;
  // Set values differ between runs: the label names several entries.
  [[nodiscard]] bool is_ambiguous() const;
};

// Only labels with a place ("sarathi#2").
std::map<std::string, ListEntry> read_list_entries(const View& view, std::size_t axis);

}  // namespace kvlab
