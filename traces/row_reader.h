#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/arrival_unit.h"
#include "traces/ignored_columns.h"
#include "traces/line_reader.h"
#include "traces/trace.h"

namespace kvlab {

class Params;

// The number of tokens of a text. Tokenizers are the engine's, which readers do not know.
using TokenCounter = std::function<std::int32_t(std::string_view text)>;

// Settings for reading a file, beside its name and the options of its format.
struct ReaderOptions {
  bool any_order = false;                   // rows may go back in time, and turns of a session need not be adjacent
  bool uses_arrivals = true;                // false: others replace them, so rows may lack theirs
  bool doubts_unit = true;                  // false: the user has changed the rate, so that the unit of times is no riddle
  std::vector<std::string> ignore_columns;  // beside those that every reader passes over
  std::uint64_t seed = 1;                   // of formats that draw requests
  TokenCounter count_tokens;                // of formats that hold text; empty: they estimate
};

// Shared by all readers of row-by-row formats: times that do not go backwards, follow-ups directly after their session, at least
// one request, and rows and columns that are passed over and counted.
class RowReader : public TraceSource {
 public:
  // A format's own options; a reader that has some gives the name to a struct of its own.
  struct Options {
    explicit Options(Params& /*p*/) {}
  };

  // unit_ns: of the times; 0 where they are dates or the column's name says it.
  RowReader(const ReaderOptions& options, std::string_view arrival_column, std::int64_t unit_ns = 0)
      : options_(options), arrival_column_(arrival_column), unit_(unit_ns), ignored_(options.ignore_columns) {}
  bool next(TraceRequest& request) final;
  [[nodiscard]] std::string skipped() const final;
  [[nodiscard]] std::string remark() const final;
  // A remark on the trace's origin for results made of it: estimates, drawn values; "" for recorded ones.
  [[nodiscard]] virtual std::string origin() const { return ""; }
  // False for files whose header has lengths only: every arrival is then 0.
  [[nodiscard]] virtual bool has_arrivals() const { return true; }

 protected:
  // The next usable row into `request`, which holds a default one; false at the end.
  virtual bool read_row(TraceRequest& request) = 0;
  [[nodiscard]] virtual const InputPlace& lines() const = 0;

  [[nodiscard]] const ReaderOptions& options() const { return options_; }
  // Since the first call's instant, for formats that give dates or whose clock began long before.
  Time since_first(std::int64_t instant_ns);
  // A time that a row gives, from the trace's start. If the first row gives an instant since 1970 (later than ten years), times count from
  // that instant, and a remark says so.
  Time time_of(std::int64_t ns);
  // The arrival of a row without one, where `uses_arrivals` is false: it keeps the rows' order. Else stops.
  Time arrival_of_row_without() const;
  void count(const std::string& what, std::uint64_t times = 1) {
    if (times > 0) counts_[what] += times;
  }
  [[nodiscard]] IgnoredColumns& ignored() { return ignored_; }

 private:
  void check_order(const TraceRequest& request);

  ReaderOptions options_;
  std::string_view arrival_column_;
  std::optional<std::int64_t> first_ns_;
  std::optional<bool> has_instants_;  // by time_of()
  Time latest_ = Time::min();
  std::int64_t session_before_ = -1;
  std::uint64_t num_requests_ = 0;
  ArrivalUnit unit_;
  bool is_at_end_ = false;
  IgnoredColumns ignored_;
  std::map<std::string, std::uint64_t> counts_;
};

// For recognises() of a format: if a file's first line is the header of a CSV file that names `column`, or a JSON object that has `key`.
bool header_names(std::string_view line, std::string_view column);
bool object_has(std::string_view line, std::string_view key);

// A session's number: the text itself where it is one, else a 63-bit hash of it.
std::int64_t session_number(std::string_view text);

}  // namespace kvlab
