#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/results/view.h"
#include "base/csv.h"

namespace kvlab {

// Entries of one list that name one policy are told apart in results by their place ("sarathi#1"). Tables and figures show instead the
// parameters in which such entries differ: "sarathi {budget_tokens: 512}". The top manifest.json of a results folder has them under
// `entries`: column -> label -> parameter -> value; {} for a label that is shown as it is, and null for an ambiguous one.
class EntryLabels {
 public:
  using Parameters = std::vector<std::pair<std::string, std::string>>;  // key -> value

  EntryLabels() = default;
  // From the settings of all runs of the view. A default is shown where another entry sets the key, and is left out where it differs
  // among the runs of the label, for example by hardware. A label that keeps none of its keys has no parameters.
  explicit EntryLabels(const View& view);
  // From the manifest of a results folder; empty where it has none.
  static EntryLabels of_folder(const std::filesystem::path& folder);

  [[nodiscard]] bool empty() const { return columns_.empty(); }
  [[nodiscard]] nlohmann::ordered_json json() const;
  // The text of a label in a table: "sarathi {budget_tokens: 512}", or the label itself.
  [[nodiscard]] std::string shown(const std::string& column, const std::string& label) const;
  // True where folders of one table use the label for entries with other settings: its rows are of several policies.
  [[nodiscard]] bool is_ambiguous(const std::string& column, const std::string& label) const {
    return ambiguous_.contains({column, label});
  }
  [[nodiscard]] const std::set<std::pair<std::string, std::string>>& ambiguous() const { return ambiguous_; }
  // Puts the texts in place of the labels.
  void show_in(CsvTable& summary) const;

 private:
  std::map<std::string, std::map<std::string, Parameters>> columns_;
  std::set<std::pair<std::string, std::string>> ambiguous_;  // column, label
};

// Adds `entries` to a top manifest where the view has such labels.
void add_entries(const View& view, nlohmann::ordered_json& manifest);

}  // namespace kvlab
