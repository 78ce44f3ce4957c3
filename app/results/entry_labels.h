#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "app/results/view.h"
#include "base/csv.h"

namespace kvlab {

// Entries of one list that name one policy are told apart in results by their place ("sarathi#1"). Tables and figures show instead the
// parameters in which such entries differ: "sarathi {budget_tokens: 512}". The top manifest.json of a results folder has them under
// `entries`: column -> label -> parameter -> value.
class EntryLabels {
 public:
  using Parameters = std::vector<std::pair<std::string, std::string>>;  // key -> value

  EntryLabels() = default;
  // From the settings of the view's runs. A default is shown where another entry sets the key. A label without parameters of its own, or
  // one that two included folders use for other parameters, is left out.
  explicit EntryLabels(const View& view);
  // From the manifest of a results folder; empty where it has none.
  static EntryLabels of_folder(const std::filesystem::path& folder);

  [[nodiscard]] bool empty() const { return columns_.empty(); }
  [[nodiscard]] nlohmann::ordered_json json() const;
  // The text of a label in a table: "sarathi {budget_tokens: 512}", or the label itself.
  [[nodiscard]] std::string shown(const std::string& column, const std::string& label) const;
  // Puts the texts in place of the labels.
  void show_in(CsvTable& summary) const;

 private:
  std::map<std::string, std::map<std::string, Parameters>> columns_;
};

// Adds `entries` to a top manifest where the view has such labels.
void add_entries(const View& view, nlohmann::ordered_json& manifest);

}  // namespace kvlab
