#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/csv.h"
#include "base/error.h"
#include "base/random.h"
#include "base/text.h"
#include "policies/predictor/predictor.h"

namespace kvlab {

namespace {

// "FILE:LINE: ", for messages.
inline std::string place(const CsvTable& table, std::size_t line) { return table.file + ":" + std::to_string(line) + ": "; }

// Field in [min, max]; throws InputError with file:line.
inline double number_in(const CsvTable& table, std::size_t line, const std::string& field, double min, double max) {
  double value = 0;
  if (!parse_real(field, value) || !(value >= min && value <= max))
    throw InputError(place(table, line) + "'" + field + "' is not a number from " + number_text(min) + " to " + number_text(max));
  return value;
}

class Recorded final : public Predictor {
 public:
  explicit Recorded(Params& p)
      : params_(p),
        name_(p.text("file", "",
                     "CSV file with the columns request (its number in the trace, from 0) and predicted_output; absent: the "
                     "trace's column predicted_output")) {
    if (!name_.empty() && !p.is_describing()) p.reading("file", [&] { read(read_csv(p.resolve_file(name_))); });
  }
  [[nodiscard]] std::vector<Fact> needs() const override {
    return name_.empty() ? std::vector<Fact>{Fact::kPredictedOutput} : std::vector<Fact>{};
  }

  std::int32_t output_tokens(const Request& r) override {
    if (name_.empty()) return r.facts->predicted_output;
    const auto found = by_number_.find(r.number);
    if (found == by_number_.end()) fail_missing();
    return found->second;
  }

 private:
  // Names the first request without a row.
  [[noreturn]] void fail_missing() const {
    std::uint64_t first = 0;
    while (by_number_.contains(first)) ++first;
    params_.fail_at("file", name_ + ": no row for request " + std::to_string(first) +
                                " of the trace (counted from 0); the predictor 'recorded' needs one for each request");
  }

  void read(const CsvTable& table) {
    constexpr double kMostRequests = 1e15, kLongest = 1 << 29;
    const std::size_t number = table.at("request"), predicted = table.at("predicted_output");
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      const std::size_t line = table.lines[i];
      const auto request = static_cast<std::uint64_t>(number_in(table, line, table.rows[i][number], 0, kMostRequests));
      const auto tokens = static_cast<std::int32_t>(number_in(table, line, table.rows[i][predicted], 1, kLongest));
      if (!by_number_.emplace(request, tokens).second)
        throw InputError(place(table, line) + "request " + std::to_string(request) + " has two rows");
    }
  }

  Params params_;
  std::string name_;
  std::unordered_map<std::uint64_t, std::int32_t> by_number_;
};

KVLAB_REGISTER(Predictor, Recorded, "recorded", "estimates from the trace's column 'predicted_output' or from a file", "");

// File header: output_tokens and the buckets' upper ends, ascending; rows: the true bucket's upper end, then probabilities. Longer outputs
// count in the last.
class Confusion final : public Predictor {
 public:
  explicit Confusion(Params& p) {
    const std::string name = p.text("file", "CSV file: output_tokens,<upper ends of buckets>; a row per true bucket");
    if (!p.is_describing()) p.reading("file", [&] { read(read_csv(p.resolve_file(name))); });
  }

  [[nodiscard]] bool is_random() const override { return true; }
  std::int32_t output_tokens(const Request& r) override {
    std::size_t row = 0;
    while (row + 1 < ends_.size() && r.output_limit > ends_[row]) ++row;
    double left = Draw{seed(), Purpose::kPrediction, r.number}.uniform();
    std::size_t bucket = 0;
    while (bucket + 1 < ends_.size() && left >= matrix_[row][bucket]) left -= matrix_[row][bucket++];
    return ends_[bucket];
  }

 private:
  void read(const CsvTable& table) {
    constexpr double kLongest = 1 << 29, kTolerance = 1e-3;
    if (table.columns.empty() || table.columns[0] != "output_tokens" || table.columns.size() < 2)
      throw InputError(table.file + ":1: a confusion matrix begins with 'output_tokens', then the upper end of each bucket");
    for (std::size_t i = 1; i < table.columns.size(); ++i) {
      ends_.push_back(static_cast<std::int32_t>(number_in(table, 1, table.columns[i], 1, kLongest)));
      if (i > 1 && ends_[i - 1] <= ends_[i - 2]) throw InputError(table.file + ":1: the upper ends of the buckets must ascend");
    }
    if (table.rows.size() != ends_.size())
      throw InputError(table.file + ": " + std::to_string(table.rows.size()) + " rows for " + std::to_string(ends_.size()) +
                       " buckets; a confusion matrix has a row for each");
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      const auto end = static_cast<std::int32_t>(number_in(table, table.lines[i], table.rows[i][0], 1, kLongest));
      if (end != ends_[i]) throw InputError(place(table, table.lines[i]) + "the rows have the buckets of the header, in its order");
      double sum = 0;
      std::vector<double> row;
      for (std::size_t k = 1; k < table.rows[i].size(); ++k) {
        row.push_back(number_in(table, table.lines[i], table.rows[i][k], 0, 1));
        sum += row.back();
      }
      if (std::abs(sum - 1) > kTolerance) throw InputError(place(table, table.lines[i]) + "the probabilities of a row add up to 1");
      matrix_.push_back(row);
    }
  }

  std::vector<std::int32_t> ends_;
  std::vector<std::vector<double>> matrix_;  // [true bucket][estimate]
};

KVLAB_REGISTER(Predictor, Confusion, "confusion", "a length bucket drawn from a measured confusion matrix", "");

}  // namespace

}  // namespace kvlab
