#include <array>
#include <limits>

#include "traces/fact_columns.h"
#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// Our own lossless format.
class KvlabCsv final : public CsvReader {
 public:
  static bool recognises(std::string_view line) { return header_names(line, "prompt_tokens") && header_names(line, "output_tokens"); }
  KvlabCsv(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& /*own*/)
      : CsvReader(std::move(lines), options, kColumns, 0), has_facts_(has_fact_columns(rows_, kFacts)) {}

 private:
  static constexpr std::int64_t kMaxSession = std::numeric_limits<std::int64_t>::max();
  enum Column : std::uint8_t { kTime, kPrompt, kOutput, kSession, kDelay, kHashTokens, kHashes, kFacts };
  static constexpr auto kColumns = [] {
    std::array<CsvColumn, kFacts + kFactColumns.size()> columns{{{"arrival_ns", kOptional},
                                                                 {"prompt_tokens"},
                                                                 {"output_tokens"},
                                                                 {"session", kOptional},
                                                                 {"delay_ns", kOptional},
                                                                 {"hash_tokens", kOptional},
                                                                 {"hashes", kOptional}}};
    for (std::size_t i = 0; i < kFactColumns.size(); ++i) columns[kFacts + i] = {kFactColumns[i], kOptional};
    return columns;
  }();

  [[nodiscard]] bool given(Column column) const { return rows_.has(column) && !rows_.text(column).empty(); }

  bool read_row(TraceRequest& request) override {
    if (!rows_.next()) return false;
    request.prompt_tokens = rows_.prompt_tokens(kPrompt);
    request.output_tokens = rows_.output_tokens(kOutput);
    if (given(kSession)) request.session = rows_.integer(kSession, 0, kMaxSession);
    request.is_follow_up = given(kDelay);
    if (request.is_follow_up && given(kTime)) rows_.fail(kDelay, "a row has either an arrival or a delay after the turn before it");
    if (request.is_follow_up && request.session < 0) rows_.fail(kDelay, "a row with a delay needs a session");
    if (request.is_follow_up)
      request.delay = Span(rows_.integer(kDelay, 0, kMaxTraceNs));
    else
      request.arrival = arrival();
    if (given(kHashTokens)) request.hash_tokens = static_cast<std::int32_t>(rows_.integer(kHashTokens, 1, kMaxTokens));
    if (given(kHashes))
      read_hashes(rows_.text(kHashes));
    else
      hashes_.clear();
    request.hashes = hashes_;
    check_hashes(lines(), request);
    if (has_facts_) {
      read_facts(rows_, kFacts, facts_);
      request.facts = &facts_;
    }
    return true;
  }

  [[nodiscard]] Time arrival() const {
    if (rows_.has(kTime) && (options().uses_arrivals || given(kTime))) return Time(Span(rows_.integer(kTime, 0, kMaxTraceNs)));
    return has_arrivals() ? arrival_of_row_without() : kStart;
  }

  void read_hashes(std::string_view text) {
    hashes_.clear();
    for (;;) {
      const std::size_t space = text.find(' ');
      std::uint64_t hash = 0;
      if (!parse_unsigned(text.substr(0, space), hash)) {
        rows_.fail(kHashes, quoted(text.substr(0, space)) +
                                " is not a whole number from 0 to 18446744073709551615; one space stands between hashes");
      }
      hashes_.push_back(hash);
      if (space == std::string_view::npos) return;
      text.remove_prefix(space + 1);
    }
  }

  std::vector<std::uint64_t> hashes_;
  bool has_facts_;
  RequestFacts facts_;
};

KVLAB_REGISTER_TRACE(KvlabCsv, "kvlab_csv", "arrival_ns,prompt_tokens,output_tokens,...", "our definition");

}  // namespace

}  // namespace kvlab
