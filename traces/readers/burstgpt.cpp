#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// BurstGPT (Wang et al. 2024; github.com/HPMLL/BurstGPT).
class BurstGpt final : public CsvReader {
 public:
  struct Options {
    explicit Options(Params& p) : skip_failed(p.flag("skip_failed", false, "burstgpt: pass over (and count) requests without response")) {}
    bool skip_failed;
  };
  enum Column : std::uint8_t { kTime, kPrompt, kOutput, kSession };
  static constexpr std::array<CsvColumn, 8> kColumns{{{"Timestamp", kOptional},
                                                      {"Request tokens"},
                                                      {"Response tokens"},
                                                      {"Session ID", kOptional},
                                                      {"Elapsed time", kIgnored},
                                                      {"Model", kIgnored},
                                                      {"Total tokens", kIgnored},
                                                      {"Log Type", kIgnored}}};
  static bool recognises(std::string_view line) { return header_names(line, "Request tokens"); }
  BurstGpt(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : CsvReader(std::move(lines), options, kColumns, kSecondNs), own_(own) {}

 private:
  bool read_row(TraceRequest& request) override {
    while (rows_.next()) {
      if (rows_.has(kTime)) request.arrival = since_first(ns(rows_.time(kTime, kSecondNs)));
      if (own_.skip_failed && rows_.text(kOutput) == "0") {
        count("failed requests (0 response tokens) passed over");
        continue;
      }
      request.prompt_tokens = rows_.prompt_tokens(kPrompt);
      request.output_tokens = static_cast<std::int32_t>(
          rows_.integer(kOutput, 1, kMaxTokens, "; 0 marks a failed request: set 'skip_failed: true' to pass over those, counted"));
      if (rows_.has(kSession) && !rows_.text(kSession).empty()) request.session = number_of_name(rows_.text(kSession));
      return true;
    }
    return false;
  }

  Options own_;
};

KVLAB_REGISTER_TRACE(BurstGpt, "burstgpt", "Timestamp,...,Request tokens,Response tokens,...",
                     "BurstGPT: Wang et al. 2024, arXiv:2401.17644");

}  // namespace

}  // namespace kvlab
