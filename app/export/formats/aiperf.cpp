#include <fmt/format.h>

#include <cmath>

#include "app/export/export_format.h"
#include "traces/logs/real_log.h"

namespace kvlab {

namespace {

using AiperfOut = nlohmann::ordered_json;

constexpr const char* kAiperfSchema = "1.4";

AiperfOut record_metric(const std::vector<double>& values, const char* unit) {
  AiperfOut m = {{"unit", unit}, {"avg", statistic_of(values, "mean")}};
  for (const char* const s : {"p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "min", "max", "std"})
    m[s] = statistic_of(values, s);
  double sum = 0;
  for (const double v : values) sum += v;
  m["count"] = values.size();
  m["sum"] = sum;
  return m;
}

void add_record_metric(AiperfOut& out, const char* name, const std::vector<double>& values, const char* unit) {
  if (!values.empty()) out[name] = record_metric(values, unit);
}

void add_value(AiperfOut& out, const char* name, const std::optional<double>& value, const char* unit) {
  if (value) out[name] = AiperfOut{{"unit", unit}, {"avg", *value}};
}
// profile_export_aiperf.json: statistics of completed requests after the warm-up.
AiperfOut report_of(const ExportedRun& run, const std::vector<RequestRow>& requests) {
  const LatencyValues latencies = latency_values(requests);
  std::vector<double> inputs, outputs, rates;
  for (const RequestRow& r : requests) {
    if (!r.is_completed() || r.is_warm_up) continue;
    inputs.push_back(static_cast<double>(r.prompt_tokens));
    outputs.push_back(static_cast<double>(r.output_tokens));
    if (const auto tpot = r.tpot_ms(); tpot && *tpot > 0) rates.push_back(1e3 / *tpot);
  }
  AiperfOut out = {{"schema_version", kAiperfSchema}, {"benchmark_id", run.id}};
  add_value(out, "request_throughput", run.number("requests_per_s"), "requests/sec");
  add_record_metric(out, "request_latency", latencies.e2e, "ms");
  add_value(out, "request_count", static_cast<double>(latencies.completed), "requests");
  add_record_metric(out, "time_to_first_token", latencies.ttft, "ms");
  add_record_metric(out, "inter_token_latency", latencies.tpot, "ms");
  add_value(out, "output_token_throughput", run.number("output_tokens_per_s"), "tokens/sec");
  add_record_metric(out, "output_token_throughput_per_user", rates, "tokens/sec/user");
  add_record_metric(out, "output_sequence_length", outputs, "tokens");
  add_record_metric(out, "input_sequence_length", inputs, "tokens");
  add_value(out, "goodput", run.number("goodput_per_s"), "requests/sec");
  add_value(out, "total_isl", static_cast<double>(latencies.prompt_tokens), "tokens");
  add_value(out, "total_osl", static_cast<double>(latencies.output_tokens), "tokens");
  add_value(out, "benchmark_duration", run.number("duration_s"), "sec");
  if (latencies.failed > 0) add_value(out, "error_request_count", static_cast<double>(latencies.failed), "requests");
  return out;
}

AiperfOut value_of(double value, const char* unit) { return {{"value", value}, {"unit", unit}}; }

// Numbers a session's turns from 0 in file order.
class AiperfRecords {
 public:
  AiperfRecords(const ExportedRun& run, double start_s) : run_(run), start_ns_(static_cast<std::int64_t>(std::llround(start_s * 1e9))) {}
  // The line of a request, or "" if it never arrived.
  std::string line(const RequestRow& r) {
    if (!r.arrival_ns) return "";
    AiperfOut metadata = {{"session_num", number_++}, {"x_request_id", fmt::format("{}-{}", run_.id, r.request)}};
    if (!r.session.empty()) metadata.update({{"conversation_id", r.session}, {"turn_index", turns_[r.session]++}});
    metadata["request_start_ns"] = start_ns_ + *r.arrival_ns;
    metadata["request_end_ns"] = start_ns_ + r.last_token_ns.value_or(*r.arrival_ns);
    metadata["worker_id"] = "replica_" + r.replica;
    metadata["record_processor_id"] = "kvlab";
    metadata["benchmark_phase"] = r.is_warm_up ? "warmup" : "profiling";
    metadata["was_cancelled"] = r.state == "unfinished";
    const AiperfOut error = r.state == "rejected" ? AiperfOut{{"type", "Rejected"}, {"message", "rejected"}} : AiperfOut();
    return AiperfOut{{"metadata", metadata}, {"metrics", metrics(r)}, {"error", error}}.dump() + "\n";
  }

 private:
  static AiperfOut metrics(const RequestRow& r) {
    AiperfOut m = {{"input_sequence_length", value_of(static_cast<double>(r.prompt_tokens), "tokens")}};
    if (!r.is_completed()) return m;
    m["time_to_first_token"] = value_of(r.ttft_ms(), "ms");
    m["request_latency"] = value_of(r.e2e_ms(), "ms");
    m["output_sequence_length"] = value_of(static_cast<double>(r.output_tokens), "tokens");
    if (const auto tpot = r.tpot_ms()) m["inter_token_latency"] = value_of(*tpot, "ms");
    return m;
  }

  const ExportedRun& run_;
  std::int64_t start_ns_, number_ = 0;
  std::map<std::string, std::int64_t> turns_;
};

// AIPerf's profile_export_aiperf.json and profile_export.jsonl.
class AiperfExport final : public ExportFormat {
 public:
  explicit AiperfExport(Params& /*none*/) {}
  [[nodiscard]] bool is_per_run() const override { return true; }
  void write(const ExportSource& source, const ExportOptions& options, ExportFolder& out) const override {
    const ExportedRun& run = source.runs.front();
    const std::vector<RequestRow> requests = run.requests();
    AiperfRecords records(run, options.start_s);
    std::string lines;
    for (const RequestRow& r : requests) lines += records.line(r);
    out.write("profile_export_aiperf.json", report_of(run, requests).dump(2) + "\n");
    out.write("profile_export.jsonl", lines);
  }
};

KVLAB_REGISTER(ExportFormat, AiperfExport, "aiperf", "AIPerf's profile_export_aiperf.json (schema 1.4) and profile_export.jsonl", "");

}  // namespace

}  // namespace kvlab
