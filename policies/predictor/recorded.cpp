#include <string>
#include <unordered_map>

#include "base/csv.h"
#include "policies/predictor/number_of_row.h"
#include "policies/predictor/predictor.h"

namespace kvlab {

namespace {

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

}  // namespace

}  // namespace kvlab
