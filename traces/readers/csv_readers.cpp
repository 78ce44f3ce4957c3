// The public CSV formats that give lengths and times only.
#include <fmt/format.h>

#include <array>
#include <limits>

#include "traces/csv_rows.h"
#include "traces/numbers.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

using enum CsvColumn::Need;
constexpr std::int64_t kSecondNs = 1'000'000'000;

class CsvReader : public RowReader {
 public:
  // The first column is that of the times.
  CsvReader(std::unique_ptr<LineReader> lines, const ReaderOptions& options, std::span<const CsvColumn> columns, std::int64_t unit_ns)
      : RowReader(options, columns[0].name, unit_ns), rows_(std::move(lines), columns, ignored()) {}
  [[nodiscard]] bool has_arrivals() const final { return rows_.has(0); }

 protected:
  [[nodiscard]] const LineReader& lines() const final { return rows_.lines(); }
  CsvRows rows_;
};

// Azure LLM inference traces (github.com/Azure/AzurePublicDataset): 2023 writes seven digits of a second and no zone, 2024
// at most six digits, none where they are zero, and +00:00. 2025 has requests with images, whose tokens no column gives.
class Azure final : public CsvReader {
 public:
  enum Column : std::uint8_t { kTime, kPrompt, kOutput, kImages };
  static constexpr std::array<CsvColumn, 4> kColumns{
      {{"TIMESTAMP", kOptional}, {"ContextTokens"}, {"GeneratedTokens"}, {"NumImages", kOptional}}};
  Azure(std::unique_ptr<LineReader> lines, const ReaderOptions& options) : CsvReader(std::move(lines), options, kColumns, 0) {}

 private:
  bool read_row(TraceRequest& request) override {
    while (rows_.next()) {
      if (rows_.has(kTime)) request.arrival = since_first(instant());
      if (rows_.has(kImages) && rows_.integer(kImages, 0, kMaxTokens) > 0) {
        count("requests with images, whose tokens the trace does not give");
        continue;
      }
      request.prompt_tokens = rows_.prompt_tokens(kPrompt);
      request.output_tokens = rows_.output_tokens(kOutput);
      return true;
    }
    return false;
  }

  [[nodiscard]] std::int64_t instant() const {
    std::int64_t since_1970_ns = 0;
    if (!parse_date_time_ns(rows_.text(kTime), since_1970_ns)) {
      rows_.fail(kTime,
                 quoted(rows_.text(kTime)) + " is not a time; expected YYYY-MM-DD hh:mm:ss, with a fraction and a zone (+00:00) if wanted");
    }
    return since_1970_ns;
  }
};

// BurstGPT (Wang et al. 2024; github.com/HPMLL/BurstGPT).
class BurstGpt final : public CsvReader {
 public:
  enum Column : std::uint8_t { kTime, kPrompt, kOutput, kSession };
  static constexpr std::array<CsvColumn, 8> kColumns{{{"Timestamp", kOptional},
                                                      {"Request tokens"},
                                                      {"Response tokens"},
                                                      {"Session ID", kOptional},
                                                      {"Elapsed time", kIgnored},
                                                      {"Model", kIgnored},
                                                      {"Total tokens", kIgnored},
                                                      {"Log Type", kIgnored}}};
  BurstGpt(std::unique_ptr<LineReader> lines, const ReaderOptions& options) : CsvReader(std::move(lines), options, kColumns, kSecondNs) {}

 private:
  bool read_row(TraceRequest& request) override {
    while (rows_.next()) {
      if (rows_.has(kTime)) request.arrival = since_first(ns(rows_.time(kTime, kSecondNs)));
      if (options().skip_failed && rows_.text(kOutput) == "0") {
        count("failed requests (0 response tokens) passed over");
        continue;
      }
      request.prompt_tokens = rows_.prompt_tokens(kPrompt);
      request.output_tokens = static_cast<std::int32_t>(
          rows_.integer(kOutput, 1, kMaxTokens, "; 0 marks a failed request: set 'skip_failed: true' to pass over those, counted"));
      if (rows_.has(kSession) && !rows_.text(kSession).empty()) request.session = session_number(rows_.text(kSession));
      return true;
    }
    return false;
  }
};

// Vidur's processed traces (github.com/microsoft/vidur); the one made from arXiv papers has no arrivals.
class Vidur final : public CsvReader {
 public:
  enum Column : std::uint8_t { kTime, kPrompt, kOutput };
  static constexpr std::array<CsvColumn, 5> kColumns{
      {{"arrived_at", kOptional}, {"num_prefill_tokens"}, {"num_decode_tokens"}, {"num_total_tokens", kIgnored}, {"pd_ratio", kIgnored}}};
  Vidur(std::unique_ptr<LineReader> lines, const ReaderOptions& options) : CsvReader(std::move(lines), options, kColumns, kSecondNs) {}

 private:
  bool read_row(TraceRequest& request) override {
    if (!rows_.next()) return false;
    if (rows_.has(kTime)) request.arrival = Time(rows_.time(kTime, kSecondNs));
    request.prompt_tokens = rows_.prompt_tokens(kPrompt);
    request.output_tokens = rows_.output_tokens(kOutput);
    return true;
  }
};

// Traces of the Splitwise simulator (Patel et al. 2024; github.com/Mutinifni/splitwise-sim).
class Splitwise final : public CsvReader {
 public:
  enum Column : std::uint8_t { kTime, kPrompt, kOutput, kBatch };
  static constexpr std::array<CsvColumn, 7> kColumns{{{"arrival_timestamp", kOptional},
                                                      {"prompt_size"},
                                                      {"token_size"},
                                                      {"batch_size", kOptional},
                                                      {"request_id", kIgnored},
                                                      {"request_type", kIgnored},
                                                      {"application_id", kIgnored}}};
  Splitwise(std::unique_ptr<LineReader> lines, const ReaderOptions& options) : CsvReader(std::move(lines), options, kColumns, kSecondNs) {}

 private:
  bool read_row(TraceRequest& request) override {
    if (!rows_.next()) return false;
    if (rows_.has(kTime)) request.arrival = Time(rows_.time(kTime, kSecondNs));
    request.prompt_tokens = rows_.prompt_tokens(kPrompt);
    request.output_tokens = rows_.output_tokens(kOutput);
    if (rows_.has(kBatch) && rows_.text(kBatch) != "1") {
      rows_.fail(kBatch, quoted(rows_.text(kBatch)) + " is not 1; a row is one request: write a row for each");
    }
    return true;
  }
};

}  // namespace

std::unique_ptr<RowReader> read_azure(std::unique_ptr<LineReader> lines, const ReaderOptions& options) {
  return std::make_unique<Azure>(std::move(lines), options);
}
std::unique_ptr<RowReader> read_burstgpt(std::unique_ptr<LineReader> lines, const ReaderOptions& options) {
  return std::make_unique<BurstGpt>(std::move(lines), options);
}
std::unique_ptr<RowReader> read_vidur(std::unique_ptr<LineReader> lines, const ReaderOptions& options) {
  return std::make_unique<Vidur>(std::move(lines), options);
}
std::unique_ptr<RowReader> read_splitwise(std::unique_ptr<LineReader> lines, const ReaderOptions& options) {
  return std::make_unique<Splitwise>(std::move(lines), options);
}

}  // namespace kvlab
