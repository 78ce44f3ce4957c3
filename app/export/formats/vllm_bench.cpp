#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "app/export/export_format.h"
#include "app/results/safe_files.h"
#include "base/error.h"
#include "base/text.h"
#include "traces/logs/real_log.h"

namespace kvlab {

namespace {

// In ns from the simulation's start.
struct TokenTimes {
  std::map<std::string, std::vector<std::int64_t>> of_request;  // in order; all completed requests, or none
  std::string missing;                                          // reason if empty, else ""
};

namespace fs = std::filesystem;

// A step emits a token once all known tokens are computed.
class TokenCount {
 public:
  explicit TokenCount(std::int64_t prompt_tokens) : known_(prompt_tokens) {}
  // `tokens` after `before`. A repeated entry computes further layers.
  void add(std::int64_t tokens, std::int64_t before, std::int64_t end) {
    const bool is_same = tokens == tokens_ && before == before_;
    tokens_ = tokens, before_ = before;
    if (is_same && emits_) times_.back() = end;
    if (is_same) return;
    emits_ = before == known_ - tokens;
    if (!emits_) return;
    times_.push_back(end);
    ++known_;
  }
  // An equal entry is then new work: the request restarts.
  void preempt() { before_ = -1; }
  [[nodiscard]] const std::vector<std::int64_t>& times() const { return times_; }

 private:
  std::int64_t known_, tokens_ = 0, before_ = -1;
  bool emits_ = false;
  std::vector<std::int64_t> times_;
};

using TokenCounts = std::unordered_map<std::string, TokenCount>;

bool parse_tokens(std::string_view text, long long& tokens) { return parse_integer(text, tokens) && tokens >= 0; }

// "7:512@0 8:1@300 ": request:tokens@computed tokens before.
void add_batch(const std::string& batch, std::int64_t end, TokenCounts& counts, const fs::path& file) {
  for (std::size_t at = 0; at < batch.size();) {
    const std::size_t next = batch.find(' ', at), colon = batch.find(':', at), sign = batch.find('@', at);
    long long tokens = 0, before = 0;
    if (next == std::string::npos || colon > sign || sign > next || !parse_tokens(batch.substr(colon + 1, sign - colon - 1), tokens) ||
        !parse_tokens(batch.substr(sign + 1, next - sign - 1), before))
      throw InputError(fmt::format("{}: a step has a batch that is no list of request:tokens@before: '{}'", file.string(), batch));
    if (const auto count = counts.find(batch.substr(at, colon - at)); count != counts.end()) count->second.add(tokens, before, end);
    at = next + 1;
  }
}

void add_event(const nlohmann::json& event, TokenCounts& counts, const fs::path& file) {
  constexpr std::string_view kPreempted = "preempted ";
  const std::string type = event.value("ph", ""), name = event.value("name", "");
  if (type == "X" && event.contains("args") && event["args"].contains("batch")) {
    const double end_us = event.at("ts").get<double>() + event.at("dur").get<double>();
    add_batch(event["args"]["batch"].get<std::string>(), std::llround(end_us * 1000), counts, file);
  } else if (type == "i" && name.starts_with(kPreempted)) {
    if (const auto count = counts.find(name.substr(kPreempted.size())); count != counts.end()) count->second.preempt();
  }
}

// Parses event by event, since files are large.
void read_steps(const fs::path& file, TokenCounts& counts) {
  constexpr int kEventDepth = 2;
  const auto take = [&](int depth, nlohmann::json::parse_event_t part, nlohmann::json& value) {
    if (depth != kEventDepth || part != nlohmann::json::parse_event_t::object_end) return true;
    add_event(value, counts, file);
    return false;
  };
  std::ifstream stream(file, std::ios::binary);
  try {
    [[maybe_unused]] const auto rest = nlohmann::json::parse(stream, take);
  } catch (const nlohmann::json::exception& e) {
    throw InputError(file.string() + ": cannot be read: " + e.what());
  }
}

bool has_all_tokens(const std::vector<std::int64_t>& times, const RequestRow& r) {
  return !times.empty() && std::ssize(times) == r.output_tokens && times.front() == *r.first_token_ns && times.back() == *r.last_token_ns;
}

// From the steps in trace.json, checked against `requests`.
TokenTimes token_times(const ExportedRun& run, const std::vector<RequestRow>& requests) {
  const fs::path file = run.folder / "trace.json";
  if (kind_of(file) != PathKind::kFile) return {{}, "the run has no trace.json, which 'trace: {perfetto: true}' writes"};
  TokenCounts counts;
  for (const RequestRow& r : requests) counts.emplace(r.request, TokenCount(r.prompt_tokens));
  read_steps(file, counts);
  TokenTimes found;
  for (const RequestRow& r : requests) {
    if (!r.is_completed()) continue;
    const std::vector<std::int64_t>& times = counts.at(r.request).times();
    if (!has_all_tokens(times, r)) return {{}, fmt::format("the steps in trace.json do not give all tokens of request {}", r.request)};
    found.of_request.emplace(r.request, times);
  }
  return found;
}

using OrderedJson = nlohmann::ordered_json;

void add_number(OrderedJson& out, const char* key, const std::optional<double>& value) {
  if (value) out[key] = *value;
}

void add_statistics(OrderedJson& out, const std::string& metric, const std::vector<double>& values) {
  if (values.empty()) return;
  out["mean_" + metric + "_ms"] = statistic_of(values, "mean");
  out["median_" + metric + "_ms"] = statistic_of(values, "p50");
  out["std_" + metric + "_ms"] = statistic_of(values, "std");
  for (const char* const p : {"p90", "p95", "p99"}) out[p + ("_" + metric) + "_ms"] = statistic_of(values, p);
}

// summary.csv has no deviation.
void add_gaps(OrderedJson& out, const ExportedRun& run) {
  for (const auto& [name, statistic] : {std::pair{"mean", "mean"}, {"median", "p50"}, {"p90", "p90"}, {"p95", "p95"}, {"p99", "p99"}})
    add_number(out, fmt::format("{}_itl_ms", name).c_str(), run.number(fmt::format("itl_{}_ms", statistic)));
}
// Lists over requests in file order. As in vLLM, failed ones have zeros and a text in 'errors'.
void add_lists(OrderedJson& out, const std::vector<RequestRow>& requests, double start_s) {
  OrderedJson inputs = OrderedJson::array(), outputs = inputs, ttfts = inputs, latencies = inputs, starts = inputs, errors = inputs;
  for (const RequestRow& r : requests) {
    if (r.is_warm_up || !r.arrival_ns) continue;
    const bool is_completed = r.is_completed();
    inputs.push_back(r.prompt_tokens);
    outputs.push_back(is_completed ? r.output_tokens : 0);
    ttfts.push_back(is_completed ? r.ttft_ms() * 1e-3 : 0.0);
    latencies.push_back(is_completed ? r.e2e_ms() * 1e-3 : 0.0);
    starts.push_back(start_s + static_cast<double>(*r.arrival_ns) * 1e-9);
    errors.push_back(is_completed ? "" : r.state);
  }
  out.update({{"input_lens", inputs},
              {"output_lens", outputs},
              {"ttfts", ttfts},
              {"e2els", latencies},
              {"start_times", starts},
              {"errors", errors}});
}
// Gaps between tokens in seconds, in the same order, and their deviation.
void add_gap_lists(OrderedJson& out, const std::vector<RequestRow>& requests, const TokenTimes& tokens) {
  OrderedJson lists = OrderedJson::array();
  std::vector<double> all_ms;
  for (const RequestRow& r : requests) {
    if (r.is_warm_up || !r.arrival_ns) continue;
    OrderedJson gaps = OrderedJson::array();
    if (const auto own = tokens.of_request.find(r.request); own != tokens.of_request.end()) {
      for (std::size_t i = 1; i < own->second.size(); ++i) {
        const auto gap = static_cast<double>(own->second[i] - own->second[i - 1]);
        gaps.push_back(gap * 1e-9);
        all_ms.push_back(gap * 1e-6);
      }
    }
    lists.push_back(std::move(gaps));
  }
  if (!all_ms.empty()) out["std_itl_ms"] = statistic_of(all_ms, "std");
  out["itls"] = std::move(lists);
}

// `vllm bench serve --save-result --save-detailed`. 'itls' needs trace.json.
class VllmBench final : public ExportFormat {
 public:
  explicit VllmBench(Params& /*none*/) {}
  [[nodiscard]] bool is_per_run() const override { return true; }
  void write(const ExportSource& source, const ExportOptions& options, ExportFolder& out) const override {
    const ExportedRun& run = source.runs.front();
    const std::vector<RequestRow> requests = run.requests();
    const LatencyValues values = latency_values(requests);
    OrderedJson json = {{"backend", "kvlab"}, {"label", run.id}};
    if (run.manifest.contains("model")) json["model_id"] = run.manifest["model"];
    json["num_prompts"] = values.completed + values.failed;
    add_number(json, "duration", run.number("duration_s"));
    json["completed"] = values.completed;
    json["failed"] = values.failed;
    json["total_input_tokens"] = values.prompt_tokens;
    json["total_output_tokens"] = values.output_tokens;
    add_number(json, "request_throughput", run.number("requests_per_s"));
    add_number(json, "request_goodput", run.number("goodput_per_s"));
    const std::optional<double> prompts = run.number("prompt_tokens_per_s"), outputs = run.number("output_tokens_per_s");
    add_number(json, "output_throughput", outputs);
    if (prompts && outputs) json["total_token_throughput"] = *prompts + *outputs;
    add_statistics(json, "ttft", values.ttft);
    add_statistics(json, "tpot", values.tpot);
    add_gaps(json, run);
    add_statistics(json, "e2el", values.e2e);
    add_lists(json, requests, options.start_s);
    if (const TokenTimes tokens = token_times(run, requests); tokens.missing.empty())
      add_gap_lists(json, requests, tokens);
    else
      out.note(fmt::format("run {}: no 'itls', since {}", run.id, tokens.missing));
    out.write("vllm_bench.json", json.dump() + "\n");
  }
};

KVLAB_REGISTER(ExportFormat, VllmBench, "vllm_bench", "vllm_bench.json, as vllm bench serve --save-result --save-detailed writes it", "");

}  // namespace

}  // namespace kvlab
