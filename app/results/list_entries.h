#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/results/view.h"

namespace kvlab {

// The place-less part of the label of a list entry: "sarathi" of "sarathi#2"; "" of a label without a place.
std::string entry_base(const std::string& label);

// The settings of a list entry in a run.
struct EntryForm {
  std::vector<std::pair<std::string, std::string>> set;  // path in the entry -> value, in the order of resolved.yaml
  std::map<std::string, std::string> defaults;           // those in force
  bool is_read = false;                                  // false: the run's resolved.yaml is gone or broken

  // "" where the run has neither a value nor a default.
  [[nodiscard]] std::string value_of(const std::string& key) const;
};

// A list entry over all runs that have its label. Defaults may follow another axis, such as the hardware, and folders that are joined may
// use one label for entries of their own.
struct ListEntry {
  std::string label;
  std::vector<EntryForm> forms;  // each once, in the order of the rows
  std::set<std::string> axes;    // paths in the entry that are lists of their own

  [[nodiscard]] bool is_known() const;  // of all runs
  // True where the key, or a mapping that it is in, has a column of its own.
  [[nodiscard]] bool is_axis(const std::string& key) const;
  [[nodiscard]] bool varies(const std::string& key) const;
  // True where runs have set values that differ: the label names several entries.
  [[nodiscard]] bool is_ambiguous() const;
};

// Label -> entry, of the labels with a place ("sarathi#2") on an axis of the view. Parses equal settings once, so that
// sweeps of thousands of runs are read in a fraction of a second.
std::map<std::string, ListEntry> read_list_entries(const View& view, std::size_t axis);

}  // namespace kvlab
