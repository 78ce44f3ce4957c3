#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/results/view.h"

namespace kvlab {

// "sarathi" for "sarathi#2"; "" for a label without a place.
std::string entry_base(const std::string& label);

// A list entry's settings in a run.
struct EntryForm {
  std::vector<std::pair<std::string, std::string>> set;  // path in the entry -> value, in order
  std::map<std::string, std::string> defaults;
  bool is_read = false;  // false: resolved.yaml is missing or broken

  // Value or default, or "".
  [[nodiscard]] std::string value_of(const std::string& key) const;
};

// A list entry over all runs with its label. Defaults may depend on another axis; joined folders may reuse a label.
struct ListEntry {
  std::string label;
  std::vector<EntryForm> forms;  // distinct, in row order
  std::set<std::string> axes;    // paths in the entry that are lists

  [[nodiscard]] bool is_known() const;  // every run's file was read
  // True if the key or a mapping around it is an axis.
  [[nodiscard]] bool is_axis(const std::string& key) const;
  [[nodiscard]] bool varies(const std::string& key) const;
  // True if set values differ between runs: the label names several entries.
  [[nodiscard]] bool is_ambiguous() const;
};

// Entries of labels with a place ("sarathi#2"). Parses equal settings once.
std::map<std::string, ListEntry> read_list_entries(const View& view, std::size_t axis);

}  // namespace kvlab
