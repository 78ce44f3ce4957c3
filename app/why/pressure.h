#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/csv.h"

namespace kvlab {

class SummaryRow {
 public:
  SummaryRow() = default;
  // Throws InputError if summary.csv is missing or empty.
  explicit SummaryRow(const std::filesystem::path& run);
  [[nodiscard]] std::string text(const std::string& column) const;  // "" if absent
  // NaN if not a number.
  [[nodiscard]] double number(const std::string& column) const;

 private:
  CsvTable table_;
};

// From the first arrival of the slowest requests to the end of the last.
struct WhyWindow {
  double begin_ns = 0, end_ns = 0;
};

// "KV memory was full from 220 s on". Full: less than a tenth of the blocks is free or only cached, as in `waits_for`.
std::vector<std::string> full_in(const std::filesystem::path& run, const SummaryRow& summary, const WhyWindow& window);
// Waiting requests, preemptions, overload.
std::vector<std::string> load_in(const std::filesystem::path& run, const SummaryRow& summary);

}  // namespace kvlab
