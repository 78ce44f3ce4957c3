#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/time.h"
#include "traces/line_reader.h"
#include "traces/trace.h"

namespace kvlab {

// Detects arrivals in another unit than the format's.
class ArrivalUnit {
 public:
  // The format's; 0: certain (dates, or named by the column).
  explicit ArrivalUnit(std::int64_t unit_ns) : unit_ns_(unit_ns) {}

  void add(Time arrival) {
    first_ = std::min(first_, arrival);
    last_ = std::max(last_, arrival);
    ++count_;
    has_fraction_ = has_fraction_ || (unit_ns_ > 0 && ns(arrival) % unit_ns_ != 0);
  }
  // "" if plausible. is_whole: the span counts too.
  [[nodiscard]] std::string remark(std::string_view column, bool is_whole) const;

 private:
  [[nodiscard]] bool in_ms() const { return unit_ns_ == 1'000'000; }
  [[nodiscard]] bool is_too_slow(double rate_per_s) const;
  [[nodiscard]] bool is_too_fast(double span_s, double rate_per_s, bool is_whole) const;

  std::int64_t unit_ns_;
  Time first_ = Time::max(), last_ = Time::min();
  std::uint64_t count_ = 0;
  bool has_fraction_ = false;
};

class Params;

using TokenCounter = std::function<std::int32_t(std::string_view text)>;

struct ReaderOptions {
  bool any_order = false;     // of times; turns need not be adjacent
  bool uses_arrivals = true;  // false: replaced, may be absent
  bool doubts_unit = true;    // false: the user changed the rate
  std::vector<std::string> ignore_columns;
  std::uint64_t seed = 1;
  TokenCounter count_tokens;  // for text; empty: estimates
};

// Times ascend, follow-ups directly follow their session, at least one request; counts skipped rows and columns.
class RowReader : public TraceSource {
 public:
  // Readers may define their own.
  struct Options {
    explicit Options(Params& /*p*/) {}
  };

  // unit_ns: 0: dates, or named by the column.
  RowReader(const ReaderOptions& options, std::string_view arrival_column, std::int64_t unit_ns = 0)
      : options_(options), arrival_column_(arrival_column), unit_(unit_ns), ignored_(options.ignore_columns) {}
  bool next(TraceRequest& request) final;
  [[nodiscard]] std::string skipped() const final;
  [[nodiscard]] std::string remark() const final;
  // "" for recorded data.
  [[nodiscard]] virtual std::string origin() const { return ""; }
  // False: only lengths, arrivals are 0.
  [[nodiscard]] virtual bool has_arrivals() const { return true; }

 protected:
  // False at the end.
  virtual bool read_row(TraceRequest& request) = 0;
  [[nodiscard]] virtual const InputPlace& lines() const = 0;

  [[nodiscard]] const ReaderOptions& options() const { return options_; }
  Time since_first(std::int64_t instant_ns);
  // If the first time is an instant since 1970 (later than ten years), from that, with a remark.
  Time time_of(std::int64_t ns);
  // Keeps the order if !uses_arrivals, else throws.
  Time arrival_of_row_without() const;
  void count(const std::string& what, std::uint64_t times = 1) {
    if (times > 0) counts_[what] += times;
  }
  // Counts rows with the id of an earlier one. rows: plural; column: the id's.
  bool is_repeated(std::int64_t id, std::string_view column = "request_id", std::string_view rows = "rows");
  [[nodiscard]] IgnoredColumns& ignored() { return ignored_; }

 private:
  void check_order(const TraceRequest& request);

  ReaderOptions options_;
  std::string_view arrival_column_;
  std::optional<std::int64_t> first_ns_;
  std::optional<bool> has_instants_;
  Time latest_ = Time::min();
  std::int64_t session_before_ = -1;
  std::uint64_t num_requests_ = 0;
  ArrivalUnit unit_;
  bool is_at_end_ = false;
  IgnoredColumns ignored_;
  std::map<std::string, std::uint64_t> counts_;
  std::unordered_set<std::int64_t> seen_;  // ids
};

bool header_names(std::string_view line, std::string_view column);
bool object_has(std::string_view line, std::string_view key);

}  // namespace kvlab
