#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// Vidur's processed traces (github.com/microsoft/vidur); that of arXiv papers has no arrivals.
class Vidur final : public CsvReader {
 public:
  enum Column : std::uint8_t { kTime, kPrompt, kOutput };
  static constexpr std::array<CsvColumn, 5> kColumns{
      {{"arrived_at", kOptional}, {"num_prefill_tokens"}, {"num_decode_tokens"}, {"num_total_tokens", kIgnored}, {"pd_ratio", kIgnored}}};
  static bool recognises(std::string_view line) { return header_names(line, "num_prefill_tokens"); }
  Vidur(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& /*own*/)
      : CsvReader(std::move(lines), options, kColumns, kSecondNs) {}

 private:
  bool read_row(TraceRequest& request) override {
    if (!rows_.next()) return false;
    if (rows_.has(kTime)) request.arrival = Time(rows_.time(kTime, kSecondNs));
    request.prompt_tokens = rows_.prompt_tokens(kPrompt);
    request.output_tokens = rows_.output_tokens(kOutput);
    return true;
  }
};

KVLAB_REGISTER_TRACE(Vidur, "vidur", "arrived_at,num_prefill_tokens,num_decode_tokens", "Vidur: Agrawal et al. 2024, arXiv:2405.05465");

}  // namespace

}  // namespace kvlab
