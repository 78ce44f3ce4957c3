// Our own formats: every field of TraceRequest, so that writing and reading a trace changes nothing.
#include <fmt/format.h>

#include <array>
#include <limits>

#include "traces/csv_rows.h"
#include "traces/json_rows.h"
#include "traces/numbers.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMaxSession = std::numeric_limits<std::int64_t>::max();

void check_hashes(const LineReader& lines, const TraceRequest& request) {
  if (request.hashes.empty() != (request.hash_tokens == 0))
    lines.fail("hash_tokens", "hashes and hash_tokens go together: give both or neither");
  const std::int64_t tokens = std::int64_t{request.prompt_tokens} + request.output_tokens;
  const auto most = static_cast<std::size_t>(request.hashes.empty() ? 0 : (tokens + request.hash_tokens - 1) / request.hash_tokens);
  if (request.hashes.size() > most) {
    lines.fail("hashes", fmt::format("{} hashes of {} tokens each, but prompt and output have {} tokens", request.hashes.size(),
                                     request.hash_tokens, tokens));
  }
}

class KvlabCsv final : public RowReader {
 public:
  KvlabCsv(std::unique_ptr<LineReader> lines, const ReaderOptions& options)
      : RowReader(options, "arrival_ns"), rows_(std::move(lines), kColumns, ignored()) {}
  [[nodiscard]] bool has_arrivals() const override { return rows_.has(kTime); }

 private:
  enum Column : std::uint8_t { kTime, kPrompt, kOutput, kSession, kDelay, kHashTokens, kHashes };
  static constexpr auto kOptional = CsvColumn::Need::kOptional;
  static constexpr std::array<CsvColumn, 7> kColumns{{{"arrival_ns", kOptional},
                                                      {"prompt_tokens"},
                                                      {"output_tokens"},
                                                      {"session", kOptional},
                                                      {"delay_ns", kOptional},
                                                      {"hash_tokens", kOptional},
                                                      {"hashes", kOptional}}};

  [[nodiscard]] const LineReader& lines() const override { return rows_.lines(); }
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

  CsvRows rows_;
  std::vector<std::uint64_t> hashes_;
};

class KvlabJsonl final : public RowReader {
 public:
  KvlabJsonl(std::unique_ptr<LineReader> lines, const ReaderOptions& options)
      : RowReader(options, "arrival_ns"), rows_(std::move(lines), ignored()) {}

 private:
  enum Key : std::uint8_t { kTime, kPrompt, kOutput, kSession, kDelay, kHashTokens, kHashes };
  static constexpr std::array<std::string_view, 7> kKeys{"arrival_ns", "prompt_tokens", "output_tokens", "session",
                                                         "delay_ns",   "hash_tokens",   "hashes"};

  [[nodiscard]] const LineReader& lines() const override { return rows_.lines(); }

  bool read_row(TraceRequest& request) override {
    hashes_.clear();
    bool has_arrival = false;
    const bool found = rows_.next(kKeys, [&](std::size_t key, JsonField field) {
      switch (key) {
        case kTime:
          has_arrival = true;
          request.arrival = Time(Span(field.integer(0, kMaxTraceNs)));
          break;
        case kPrompt:
          request.prompt_tokens = field.prompt_tokens();
          break;
        case kOutput:
          request.output_tokens = field.output_tokens();
          break;
        case kSession:
          request.session = field.integer(0, kMaxSession);
          break;
        case kDelay:
          request.is_follow_up = true;
          request.delay = Span(field.integer(0, kMaxTraceNs));
          break;
        case kHashTokens:
          request.hash_tokens = static_cast<std::int32_t>(field.integer(1, kMaxTokens));
          break;
        default:
          field.unsigned_list(hashes_);
          break;
      }
    });
    if (!found) return false;
    if (request.prompt_tokens == 0) fail_missing_key(lines(), "prompt_tokens");
    if (request.output_tokens == 0) fail_missing_key(lines(), "output_tokens");
    if (request.is_follow_up && has_arrival) lines().fail("delay_ns", "a row has either an arrival or a delay after the turn before it");
    if (request.is_follow_up && request.session < 0) lines().fail("delay_ns", "a row with a delay needs a session");
    if (!request.is_follow_up && !has_arrival) request.arrival = arrival_of_row_without();
    request.hashes = hashes_;
    check_hashes(lines(), request);
    return true;
  }

  JsonRows rows_;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace

std::unique_ptr<RowReader> read_kvlab_csv(std::unique_ptr<LineReader> lines, const ReaderOptions& options) {
  return std::make_unique<KvlabCsv>(std::move(lines), options);
}
std::unique_ptr<RowReader> read_kvlab_jsonl(std::unique_ptr<LineReader> lines, const ReaderOptions& options) {
  return std::make_unique<KvlabJsonl>(std::move(lines), options);
}

}  // namespace kvlab
