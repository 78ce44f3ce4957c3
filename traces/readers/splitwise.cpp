#include "base/hash.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// Splitwise simulator (Patel et al. 2024; github.com/Mutinifni/splitwise-sim).
class Splitwise final : public CsvReader {
 public:
  enum Column : std::uint8_t { kTime, kPrompt, kOutput, kBatch, kRequestId };
  static constexpr std::array<CsvColumn, 7> kColumns{{{"arrival_timestamp", kOptional},
                                                      {"prompt_size"},
                                                      {"token_size"},
                                                      {"batch_size", kOptional},
                                                      {"request_id", kOptional},
                                                      {"request_type", kIgnored},
                                                      {"application_id", kIgnored}}};
  static bool recognises(std::string_view line) { return header_names(line, "prompt_size"); }
  Splitwise(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& /*own*/)
      : CsvReader(std::move(lines), options, kColumns, kSecondNs) {}

 private:
  bool read_row(TraceRequest& request) override {
    do {
      if (!rows_.next()) return false;
    } while (rows_.has(kRequestId) && !rows_.text(kRequestId).empty() && is_repeated(number_of_name(rows_.text(kRequestId))));
    if (rows_.has(kTime)) request.arrival = Time(rows_.time(kTime, kSecondNs));
    request.prompt_tokens = rows_.prompt_tokens(kPrompt);
    request.output_tokens = rows_.output_tokens(kOutput);
    if (rows_.has(kBatch) && rows_.text(kBatch) != "1") {
      rows_.fail(kBatch, quoted(rows_.text(kBatch)) + " is not 1; a row is one request: write a row for each");
    }
    return true;
  }
};

KVLAB_REGISTER_TRACE(Splitwise, "splitwise", "...,arrival_timestamp,...,prompt_size,token_size",
                     "Splitwise: Patel et al. 2024, arXiv:2311.18677");

}  // namespace

}  // namespace kvlab
