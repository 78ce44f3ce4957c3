#include <fmt/format.h>

#include "app/export/export_format.h"
#include "app/export/latency_values.h"
#include "app/export/token_times.h"
#include "traces/logs/real_log.h"

namespace kvlab {

namespace {

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
  add_number(out, "mean_itl_ms", run.number("itl_mean_ms"));
  add_number(out, "median_itl_ms", run.number("itl_p50_ms"));
  add_number(out, "p90_itl_ms", run.number("itl_p90_ms"));
  add_number(out, "p95_itl_ms", run.number("itl_p95_ms"));
  add_number(out, "p99_itl_ms", run.number("itl_p99_ms"));
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
    OrderedJson json = {{"backend", "kvlab"}, {"label", run.id()}};
    if (run.manifest().contains("model")) json["model_id"] = run.manifest()["model"];
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
      out.note(fmt::format("run {}: no 'itls', since {}", run.id(), tokens.missing));
    out.write("vllm_bench.json", json.dump() + "\n");
  }
};

KVLAB_REGISTER(ExportFormat, VllmBench, "vllm_bench", "vllm_bench.json, as vllm bench serve --save-result --save-detailed writes it", "");

}  // namespace

}  // namespace kvlab
