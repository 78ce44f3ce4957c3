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

// Labels by place ("sarathi#1") for list entries of one policy. Tables and figures show differing parameters: "sarathi {budget_tokens:
// 512}". `entries` of the top manifest.json: column -> label -> parameter -> value; {}: shown as it is; null: ambiguous.
class EntryLabels {
 public:
  using Parameters = std::vector<std::pair<std::string, std::string>>;

  EntryLabels() = default;
  // Shows a default if another entry sets the key, unless it differs among the label's runs.
  explicit EntryLabels(const View& view);
  // May be empty.
  static EntryLabels of_folder(const std::filesystem::path& folder);

  [[nodiscard]] bool empty() const { return columns_.empty(); }
  [[nodiscard]] nlohmann::ordered_json json() const;
  // Falls back on the label.
  [[nodiscard]] std::string shown(const std::string& column, const std::string& label) const;
  // Folders use the label for different settings.
  [[nodiscard]] bool is_ambiguous(const std::string& column, const std::string& label) const {
    return ambiguous_.contains({column, label});
  }
  [[nodiscard]] const std::set<std::pair<std::string, std::string>>& ambiguous() const { return ambiguous_; }
  void show_in(CsvTable& summary) const;

 private:
  std::map<std::string, std::map<std::string, Parameters>> columns_;
  std::set<std::pair<std::string, std::string>> ambiguous_;
};

// If there are such labels.
void add_entries(const View& view, nlohmann::ordered_json& manifest);

}  // namespace kvlab
