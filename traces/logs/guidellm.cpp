#include <fmt/format.h>

#include "base/error.h"
#include "base/json_text.h"
#include "traces/logs/log_format.h"

namespace kvlab {

namespace {

using GuideJson = nlohmann::json;

// Rows by status, and distributions.
class GuideBenchmark {
 public:
  GuideBenchmark(const GuideJson& root, const LogText& text) : root_(root), text_(text), file_(text.file()) {}

  [[nodiscard]] RealLog read() const {
    const GuideJson* const rows = member_of(root_, {"requests", "successful"});
    RealLog log;
    log.is_of_client = true;
    log.model = text_in(root_, {{"config", "backend", "model"}, {"worker", "backend_model"}});  // from version 0.4; before
    LeftOut repeated;
    if (rows != nullptr && rows->is_array() && !rows->empty())
      read_rows(*rows, log, repeated);
    else
      read_statistics(log);
    log.note = repeated.note(log.requests.size()) + note(log.requests.size()) + log.note;
    return log;
  }

 private:
  void read_rows(const GuideJson& rows, RealLog& log, LeftOut& repeated) const {
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (!repeated.is_repeated(text_in(rows[i], {{"request_id"}}))) log.requests.push_back(request(rows[i], i));
  }

  static double at(const GuideJson& row, std::initializer_list<const char*> path, const std::string& where) {
    const GuideJson* const value = member_of(row, path);
    if (value == nullptr)
      throw InputError(fmt::format("{}: has no '{}'; GuideLLM 0.4 and later write it for streamed answers", where, *(path.end() - 1)));
    return number_in(*value, where + ": '" + *(path.end() - 1) + "'");
  }

  // Since 1970; latency ends with the connection.
  [[nodiscard]] ServedRequest request(const GuideJson& row, std::size_t i) const {
    const std::string where = fmt::format("{}: 'successful', entry {}", file_, i + 1);
    ServedRequest r;
    r.arrival_s = r.queued_s = at(row, {"request_start_time"}, where);
    r.first_token_s = r.queued_s + 1e-3 * at(row, {"time_to_first_token_ms"}, where);
    const bool has_last = member_of(row, {"info", "timings", "last_token_iteration"}) != nullptr;
    r.last_token_s =
        has_last ? at(row, {"info", "timings", "last_token_iteration"}, where) : r.queued_s + at(row, {"request_latency"}, where);
    const GuideJson* const tokens = member_of(row, {"output_tokens"});
    r.output_tokens = tokens == nullptr ? 0 : count_in(*tokens, where + ": 'output_tokens'");
    if (r.output_tokens < 1) throw InputError(where + ": 'output_tokens' is no count from 1 in a request that did not fail");
    if (r.last_token_s < r.first_token_s) throw InputError(where + ": its last token comes before 'time_to_first_token_ms' is over");
    return r;
  }

  // Gaps are weighted by their number: the mean is that of all gaps, percentiles are of neither gaps nor requests.
  void read_statistics(RealLog& log) const {
    log.has_clock = false;
    add_distribution("time_to_first_token_ms", "ttft", 1, log);
    add_distribution("request_latency", "e2e", 1e3, log);
    if (const GuideJson* const mean = member_of(root_, {"metrics", "inter_token_latency_ms", "successful", "mean"}))
      log.statistics.push_back({"itl", "mean", number_in(*mean, file_ + ": 'inter_token_latency_ms'"), {}});
    if (const GuideJson* const count = member_of(root_, {"metrics", "request_totals", "successful"}))
      log.num_completed = count_in(*count, file_ + ": 'request_totals'");
    log.note = "without rows per request, so its statistics are compared\n";
  }

  void add_distribution(const char* name, const char* metric, double in_ms, RealLog& log) const {
    const GuideJson* const d = member_of(root_, {"metrics", name, "successful"});
    if (d == nullptr) return;
    const auto add = [&](const char* statistic, const GuideJson* value) {
      if (value == nullptr) return;
      const std::string place =
          text_.place_of({"metrics", name, "successful", std::string_view(statistic) == "std" ? "std_dev" : statistic});
      log.statistics.push_back({metric, statistic, in_ms * number_in(*value, place), {}, place});
    };
    add("mean", member_of(*d, {"mean"}));
    add("std", member_of(*d, {"std_dev"}));
    add("min", member_of(*d, {"min"}));
    for (const char* const p : {"p50", "p75", "p90", "p95", "p99"}) add(p, member_of(*d, {"percentiles", p}));
    add("max", member_of(*d, {"max"}));
  }

  // By status; rows may be a sample.
  [[nodiscard]] std::string note(std::size_t num_rows) const {
    const auto total = [&](const char* status) -> std::size_t {
      const GuideJson* const count = member_of(root_, {"metrics", "request_totals", status});
      if (count != nullptr) return static_cast<std::size_t>(count_in(*count, file_ + ": 'request_totals'"));
      const GuideJson* const rows = member_of(root_, {"requests", status});
      return rows == nullptr ? 0 : rows->size();
    };
    LeftOut left_out;
    left_out.add("failed", total("errored"));
    left_out.add("were cut off", total("incomplete"));
    const std::size_t completed = total("successful");
    std::string text = left_out.note(std::max(num_rows, completed));
    if (num_rows > 0 && num_rows < completed) text += fmt::format("it has rows of {} of its {} completed requests\n", num_rows, completed);
    return text;
  }

  const GuideJson& root_;
  const LogText& text_;
  std::string file_;
};

// benchmarks.json, one benchmark.
bool is_guidellm_log(const LogText& log) {
  const GuideJson& root = log.whole();
  return root.is_object() && root.contains("benchmarks") && root["benchmarks"].is_array() && root.contains("metadata");
}

RealLog read_guidellm_log(const LogText& log) {
  const GuideJson& all = log.whole()["benchmarks"];
  if (all.size() != 1)
    throw InputError(
        fmt::format("{}: holds {} benchmarks, and a validation compares one; jq '.benchmarks = [.benchmarks[0]]' {} writes "
                    "the first alone",
                    log.file(), all.size(), log.file()));
  RealLog read = GuideBenchmark(all[0], log).read();
  if (read.model.empty()) read.model = text_in(log.whole(), {{"args", "model"}});
  return read;
}

using GuideLlm = LogFormatOf<is_guidellm_log, read_guidellm_log>;

KVLAB_REGISTER(LogFormat, GuideLlm, "guidellm", "GuideLLM's benchmarks.json", "");

}  // namespace

}  // namespace kvlab
