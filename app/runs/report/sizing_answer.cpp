#include "app/runs/report/sizing_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "app/runs/report/known_metrics.h"
#include "base/text.h"

namespace kvlab {

namespace {

using Row = std::vector<std::string>;

class SizedRows {
 public:
  explicit SizedRows(const CsvTable& summary) : summary_(summary) {}

  [[nodiscard]] double number(const Row& row, const char* column) const {
    double value = 0;
    return summary_.has(column) && parse_real(row[summary_.at(column)], value) ? value : std::numeric_limits<double>::infinity();
  }
  [[nodiscard]] bool attains(const Row& row) const {
    return std::min(number(row, "search_replicas"), number(row, "search_tp")) < std::numeric_limits<double>::infinity();
  }
  // Some row has the result of a search for hardware.
  [[nodiscard]] bool is_sizing() const {
    return std::any_of(summary_.rows.begin(), summary_.rows.end(), [this](const Row& row) { return attains(row); });
  }
  [[nodiscard]] bool is_before(const Row& a, const Row& b) const {
    if (attains(a) != attains(b)) return attains(a);
    const double price_a = number(a, "dollars_per_million_tokens"), price_b = number(b, "dollars_per_million_tokens");
    return price_a != price_b ? price_a < price_b : number(a, "gpus") < number(b, "gpus");
  }

 private:
  const CsvTable& summary_;
};

// "hardware=h100 tp=4".
std::string title_of(const CsvTable& summary, std::size_t num_axes, const Row& row) {
  std::vector<std::string> parts;
  for (std::size_t c = 1; c <= num_axes; ++c) {
    if (std::any_of(summary.rows.begin(), summary.rows.end(), [&](const Row& other) { return other[c] != row[c]; }))
      parts.push_back(fmt::format("{}={}", last_key(summary.columns[c]), row[c]));
  }
  return join(parts, " ");
}

}  // namespace

std::string put_answer_first(CsvTable& summary, std::size_t num_axes) {
  const SizedRows sized(summary);
  if (summary.rows.size() < 2 || !sized.is_sizing()) return "";
  std::stable_sort(summary.rows.begin(), summary.rows.end(), [&](const Row& a, const Row& b) { return sized.is_before(a, b); });
  const Row& best = summary.rows.front();
  const auto attaining = std::count_if(summary.rows.begin(), summary.rows.end(), [&](const Row& row) { return sized.attains(row); });
  const auto field = [&](const char* column) { return summary.has(column) ? short_number(best[summary.at(column)]) : std::string(); };
  const bool has_price = !field("dollars_per_million_tokens").empty();
  std::vector<std::string> facts{title_of(summary, num_axes, best)};
  if (!field("search_replicas").empty()) facts.push_back(field("search_replicas") + " replicas");
  if (!field("search_tp").empty()) facts.push_back("tp " + field("search_tp"));
  facts.push_back(field("gpus") + " GPUs");
  if (has_price) facts.push_back(fmt::format("${} per 1M tokens", field("dollars_per_million_tokens")));
  return fmt::format("answer: {} of {} attain; {}: {}\n", attaining, summary.rows.size(),
                     has_price ? "the cheapest" : "with the fewest GPUs", join(facts, ", "));
}

}  // namespace kvlab
