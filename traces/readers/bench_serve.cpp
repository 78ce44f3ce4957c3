#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "traces/logs/log_format.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// `vllm bench serve --save-result --save-detailed` (docs.vllm.ai, "vllm bench serve") and SGLang's bench_serving with --output-details.
// start_times are the client's; the earliest success becomes 0.
class BenchServeTrace final : public RowReader {
 public:
  static constexpr bool kIsDocument = true;
  // Also results without lists, to report them.
  static bool recognises(std::string_view begin) {
    const auto has = [&](std::string_view key) { return begin.find(key) != std::string_view::npos; };
    const std::size_t first = begin.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos || begin[first] != '{') return false;
    return has("\"input_lens\":") || has("\"ttfts\":") || has("\"mean_ttft_ms\":");
  }
  BenchServeTrace(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& /*none*/)
      : RowReader(options, "start_times"), lines_(std::move(lines)) {
    read_file();
  }
  [[nodiscard]] bool has_arrivals() const override { return has_arrivals_; }

 private:
  struct Sent {
    double start_s = 0;
    std::int32_t prompt_tokens = 0, output_tokens = 0;
  };

  [[nodiscard]] const InputPlace& lines() const override { return *lines_; }

  void read_file() {
    std::string text;
    for (std::string_view more = lines_->next_bytes(); !more.empty(); more = lines_->next_bytes()) text += more;
    const LogText parsed(std::move(text), lines_->name());
    const nlohmann::json& root = parsed.whole();
    if (!root.is_object() && parsed.first_line().is_object())
      throw InputError(lines_->name() + ": holds several benchmark results, one per line; leave the one to simulate");
    if (!root.is_object()) throw InputError(lines_->name() + ": is not one JSON object: it is cut short, or of another format");
    if (!root.contains("input_lens") || !root.contains("output_lens"))
      throw InputError(lines_->name() +
                       ": has no lists 'input_lens' and 'output_lens', so its requests are unknown; measure with --save-result "
                       "--save-detailed (vllm bench serve) or --output-details (SGLang)");
    read_lists(root);
    if (const auto most = root.find("max_concurrency"); most != root.end() && most->is_number_unsigned())
      max_concurrency_ = most->get<std::uint64_t>();
  }

  void read_lists(const nlohmann::json& root) {
    const BenchLists lists(root, lines_->name(), "input_lens");
    has_arrivals_ = lists.has("start_times");
    if (!has_arrivals_ && options().uses_arrivals)
      throw InputError(lines_->name() +
                       ": has no 'start_times', so its arrivals are unknown; give others: 'arrival: {poisson: {rate_per_s: 2}}'");
    for (std::size_t i = 0; i < lists.size(); ++i) {
      if (lists.has_error(i) || count_in(lists.at("output_lens", i), lists.where("output_lens", i)) == 0) {
        count("failed requests left out");
        continue;
      }
      Sent& sent = sent_.emplace_back();
      sent.prompt_tokens = tokens(lists, "input_lens", i);
      sent.output_tokens = tokens(lists, "output_lens", i);
      if (has_arrivals_) sent.start_s = number_in(lists.at("start_times", i), lists.where("start_times", i));
    }
    std::ranges::stable_sort(sent_, {}, &Sent::start_s);
    check_span();
  }

  static std::int32_t tokens(const BenchLists& lists, const char* key, std::size_t i) {
    const std::int64_t value = count_in(lists.at(key, i), lists.where(key, i));
    if (value == 0) throw InputError(lists.where(key, i) + " is 0, but a request has at least 1 token: mend or remove its entries");
    return static_cast<std::int32_t>(value);
  }

  void check_span() const {
    if (sent_.empty()) return;
    const double span_s = sent_.back().start_s - sent_.front().start_s;
    if (span_s <= kLongestRunS) return;
    throw InputError(fmt::format("{}: 'start_times' span {:.3g} s, and no run lasts longer than 9.2e6 s (106 days): are they in seconds?",
                                 lines_->name(), span_s));
  }

  bool read_row(TraceRequest& request) override {
    if (next_ == sent_.size()) return false;
    const Sent& sent = sent_[next_++];
    request.prompt_tokens = sent.prompt_tokens;
    request.output_tokens = sent.output_tokens;
    request.arrival = Time(from_seconds(sent.start_s - sent_.front().start_s));
    return true;
  }

  [[nodiscard]] std::string origin() const override {
    if (!options().uses_arrivals || max_concurrency_ == 0 || max_concurrency_ >= sent_.size()) return "";
    return fmt::format(
        "the benchmark had at most {0} requests in progress (max_concurrency), so that its arrivals follow from the speed of the measured "
        "server; 'arrival: {{closed_loop: {{concurrency: {0}}}}}' makes them follow from that of the simulated one",
        max_concurrency_);
  }

  std::unique_ptr<LineReader> lines_;
  std::vector<Sent> sent_;  // by start
  std::size_t next_ = 0;
  bool has_arrivals_ = false;
  std::uint64_t max_concurrency_ = 0;  // 0: no limit
};

KVLAB_REGISTER_TRACE(BenchServeTrace, "bench_serve",
                     R"(result of vllm bench serve --save-detailed: {"input_lens":[...],"output_lens":[...],"start_times":[...],...})",
                     "vllm bench serve; bench_serving of SGLang");

}  // namespace

}  // namespace kvlab
