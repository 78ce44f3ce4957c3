#include "traces/fact_columns.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// github.com/Azure/AzurePublicDataset. Seconds: 2023 seven digits, no zone; 2024 up to six digits and +00:00. 2025 has images without token
// counts; experiments set tokens per image.
class Azure final : public CsvReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : with_images(p.flag("with_images", false,
                             "azure: take requests with images, whose tokens 'images' of the experiment adds; false: pass over and count "
                             "them")) {}
    bool with_images;
  };
  enum Column : std::uint8_t { kTime, kPrompt, kOutput, kImages };
  static constexpr std::array<CsvColumn, 4> kColumns{
      {{"TIMESTAMP", kOptional}, {"ContextTokens"}, {"GeneratedTokens"}, {"NumImages", kOptional}}};
  static bool recognises(std::string_view line) { return header_names(line, "ContextTokens"); }
  Azure(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : CsvReader(std::move(lines), options, kColumns, 0), own_(own) {}

 private:
  bool read_row(TraceRequest& request) override {
    while (rows_.next()) {
      if (rows_.has(kTime)) request.arrival = since_first(instant());
      const std::int64_t images = rows_.has(kImages) ? rows_.integer(kImages, 0, kMostImages) : 0;
      if (images > 0 && !own_.with_images) {
        count("requests with images, whose tokens the trace does not give");
        continue;
      }
      facts_.images = static_cast<std::int32_t>(images);
      if (own_.with_images) request.facts = &facts_;
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

  Options own_;
  RequestFacts facts_;
};

KVLAB_REGISTER_TRACE(Azure, "azure", "TIMESTAMP,ContextTokens,GeneratedTokens",
                     "Splitwise: Patel et al. 2024, arXiv:2311.18677 (2023); DynamoLLM: Stojkovic et al. 2025, arXiv:2408.00741 (2024)");

}  // namespace

}  // namespace kvlab
