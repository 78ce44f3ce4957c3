#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// Azure LLM inference traces (github.com/Azure/AzurePublicDataset): 2023 writes seven digits of a second and no zone, 2024
// at most six digits, none where they are zero, and +00:00. 2025 has requests with images, whose tokens no column gives.
class Azure final : public CsvReader {
 public:
  enum Column : std::uint8_t { kTime, kPrompt, kOutput, kImages };
  static constexpr std::array<CsvColumn, 4> kColumns{
      {{"TIMESTAMP", kOptional}, {"ContextTokens"}, {"GeneratedTokens"}, {"NumImages", kOptional}}};
  static bool recognises(std::string_view line) { return header_names(line, "ContextTokens"); }
  Azure(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& /*own*/)
      : CsvReader(std::move(lines), options, kColumns, 0) {}

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

KVLAB_REGISTER_TRACE(Azure, "azure", "TIMESTAMP,ContextTokens,GeneratedTokens", "");

}  // namespace

}  // namespace kvlab
