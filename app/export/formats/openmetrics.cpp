#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "app/export/export_format.h"
#include "base/text.h"

namespace kvlab {

namespace {

// Seconds (vllm/v1/metrics/loggers.py, v0.11).
constexpr double kTtftBuckets[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                   1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
constexpr double kTokenBuckets[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
constexpr double kRequestBuckets[] = {0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};

// value: tokens, seconds or 1.
struct MetricEvent {
  std::int64_t at_ns = 0;
  double value = 0;
};

// "2.5", or "10.0" for a whole number.
std::string limit_text(double limit) {
  const std::string text = number_text(limit);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

using EventOf = std::function<std::optional<MetricEvent>(const RequestRow&)>;

std::optional<MetricEvent> event_at(const std::optional<std::int64_t>& at_ns, double value) {
  return at_ns ? std::optional(MetricEvent{*at_ns, value}) : std::nullopt;
}

struct CounterFamily {
  const char* name;
  const char* help;
  EventOf event;
};

struct HistogramFamily {
  const char* name;
  const char* help;
  std::span<const double> buckets;
  EventOf event;
};

std::vector<CounterFamily> counters() {
  return {{"vllm:prefix_cache_queries", "tokens of prompts that were looked up, at the request's first step",
           [](const RequestRow& r) { return event_at(r.scheduled_ns, static_cast<double>(r.prompt_tokens)); }},
          {"vllm:prefix_cache_hits", "tokens of them that were there",
           [](const RequestRow& r) { return event_at(r.scheduled_ns, static_cast<double>(r.hit_tokens)); }},
          {"vllm:prompt_tokens", "tokens of prompts, at the request's first token",
           [](const RequestRow& r) { return event_at(r.first_token_ns, static_cast<double>(r.prompt_tokens)); }},
          {"vllm:request_success", "requests that completed",
           [](const RequestRow& r) { return r.is_completed() ? event_at(r.last_token_ns, 1) : std::nullopt; }}};
}

std::vector<HistogramFamily> histograms() {
  return {
      {"vllm:time_to_first_token_seconds", "from arrival to the first token", kTtftBuckets,
       [](const RequestRow& r) {
         return r.first_token_ns && r.arrival_ns ? event_at(r.first_token_ns, 1e-3 * r.ttft_ms()) : std::nullopt;
       }},
      {"vllm:request_time_per_output_token_seconds", "(last token - first token) / (output tokens - 1)", kTokenBuckets,
       [](const RequestRow& r) { return r.is_completed() && r.tpot_ms() ? event_at(r.last_token_ns, 1e-3 * *r.tpot_ms()) : std::nullopt; }},
      {"vllm:e2e_request_latency_seconds", "from arrival to the last token", kRequestBuckets,
       [](const RequestRow& r) { return r.is_completed() ? event_at(r.last_token_ns, 1e-3 * r.e2e_ms()) : std::nullopt; }},
      {"vllm:request_queue_time_seconds", "from the engine's queue to the first step", kRequestBuckets, [](const RequestRow& r) {
         return r.scheduled_ns && r.queued_ns ? event_at(r.scheduled_ns, 1e-9 * static_cast<double>(*r.scheduled_ns - *r.queued_ns))
                                              : std::nullopt;
       }}};
}

struct ReplicaRows {
  std::vector<RequestRow> requests;
  std::vector<ExportedSample> samples;
  std::vector<std::int64_t> instants;  // of samples, then of the last event if later
};

// Families follow one another; within one, samples are by replica, then time.
class MetricsWriter {
 public:
  MetricsWriter(const ExportedRun& run, double start_s) : model_(run.manifest.value("model", "")), start_s_(start_s) {
    for (RequestRow& r : run.requests()) {
      const std::string replica = r.replica;
      if (!replica.empty()) replicas_[replica].requests.push_back(std::move(r));  // rejected before it had one
    }
    for (const ExportedSample& s : run.samples()) replicas_[s.replica].samples.push_back(s);
    for (auto& [name, rows] : replicas_) rows.instants = instants_of(rows);
  }

  [[nodiscard]] std::string text() {
    gauge("vllm:num_requests_running", "requests that are being served",
          [](const ExportedSample& s) { return static_cast<double>(s.running); });
    gauge("vllm:num_requests_waiting", "requests in the queue", [](const ExportedSample& s) { return static_cast<double>(s.waiting); });
    gauge("vllm:kv_cache_usage_perc", "share of KV blocks in use, from 0 to 1", [](const ExportedSample& s) {
      const std::int64_t all = s.used_blocks + s.cached_blocks + s.free_blocks;
      return all > 0 ? static_cast<double>(s.used_blocks) / static_cast<double>(all) : 0.0;
    });
    for (const CounterFamily& family : counters()) counter(family);
    preemptions();
    for (const HistogramFamily& family : histograms()) histogram(family);
    return text_ + "# EOF\n";
  }

 private:
  static std::vector<std::int64_t> instants_of(const ReplicaRows& rows) {
    std::set<std::int64_t> instants;
    std::int64_t last = 0;
    for (const ExportedSample& s : rows.samples) instants.insert(s.time_ns);
    for (const RequestRow& r : rows.requests)
      last = std::max({last, r.last_token_ns.value_or(0), r.first_token_ns.value_or(0), r.scheduled_ns.value_or(0)});
    if (instants.empty() || *instants.rbegin() < last) instants.insert(last);
    return {instants.begin(), instants.end()};
  }

  void head(const char* name, const char* type, const char* help) {
    text_ += fmt::format("# TYPE {} {}\n# HELP {} {}.\n", name, type, name, help);
  }

  [[nodiscard]] std::string labels(const std::string& replica, const std::string& limit = "") const {
    std::string text = fmt::format("{{engine=\"{}\"", replica);
    if (!model_.empty()) text += fmt::format(",model_name=\"{}\"", model_);
    if (!limit.empty()) text += fmt::format(",le=\"{}\"", limit);
    return text + "}";
  }

  void sample(const std::string& name, const std::string& label_text, double value, std::int64_t at_ns) {
    text_ += fmt::format("{}{} {} {:.9f}\n", name, label_text, value, start_s_ + static_cast<double>(at_ns) * 1e-9);
  }

  void gauge(const char* name, const char* help, double (*value_of)(const ExportedSample&)) {
    const bool has_samples = std::any_of(replicas_.begin(), replicas_.end(), [](const auto& r) { return !r.second.samples.empty(); });
    if (!has_samples) return;
    head(name, "gauge", help);
    for (const auto& [replica, rows] : replicas_)
      for (const ExportedSample& s : rows.samples) sample(name, labels(replica), value_of(s), s.time_ns);
  }

  static std::vector<MetricEvent> events_of(const ReplicaRows& rows, const EventOf& event) {
    std::vector<MetricEvent> events;
    for (const RequestRow& r : rows.requests)
      if (const auto e = event(r)) events.push_back(*e);
    std::stable_sort(events.begin(), events.end(), [](const MetricEvent& a, const MetricEvent& b) { return a.at_ns < b.at_ns; });
    return events;
  }

  void counter(const CounterFamily& family) {
    head(family.name, "counter", family.help);
    for (const auto& [replica, rows] : replicas_) {
      const std::vector<MetricEvent> events = events_of(rows, family.event);
      double sum = 0;
      std::size_t next = 0;
      for (const std::int64_t at : rows.instants) {
        for (; next < events.size() && events[next].at_ns <= at; ++next) sum += events[next].value;
        sample(std::string(family.name) + "_total", labels(replica), sum, at);
      }
    }
  }

  // At the end: results lack the instants.
  void preemptions() {
    head("vllm:num_preemptions", "counter", "preemptions, of the whole run");
    for (const auto& [replica, rows] : replicas_) {
      double sum = 0;
      for (const RequestRow& r : rows.requests) sum += static_cast<double>(r.preemptions);
      sample("vllm:num_preemptions_total", labels(replica), sum, rows.instants.back());
    }
  }

  void histogram(const HistogramFamily& family) {
    head(family.name, "histogram", family.help);
    for (const auto& [replica, rows] : replicas_) {
      const std::vector<MetricEvent> events = events_of(rows, family.event);
      std::vector<double> up_to(family.buckets.size(), 0.0);
      double sum = 0;
      std::size_t next = 0;
      for (const std::int64_t at : rows.instants) {
        for (; next < events.size() && events[next].at_ns <= at; ++next) {
          sum += events[next].value;
          for (std::size_t b = 0; b < up_to.size(); ++b) up_to[b] += events[next].value <= family.buckets[b] ? 1 : 0;
        }
        add_point(family, replica, up_to, static_cast<double>(next), sum, at);
      }
    }
  }

  void add_point(const HistogramFamily& family, const std::string& replica, const std::vector<double>& up_to, double count, double sum,
                 std::int64_t at) {
    const std::string name = family.name;
    for (std::size_t b = 0; b < up_to.size(); ++b) sample(name + "_bucket", labels(replica, limit_text(family.buckets[b])), up_to[b], at);
    sample(name + "_bucket", labels(replica, "+Inf"), count, at);
    sample(name + "_count", labels(replica), count, at);
    sample(name + "_sum", labels(replica), sum, at);
  }

  std::string model_, text_;
  double start_s_;
  std::map<std::string, ReplicaRows> replicas_;
};

// vLLM's /metrics endpoint over the run, with timestamps (OpenMetrics 1.0).
class OpenMetrics final : public ExportFormat {
 public:
  explicit OpenMetrics(Params& /*none*/) {}
  [[nodiscard]] bool is_per_run() const override { return true; }
  void write(const ExportSource& source, const ExportOptions& options, ExportFolder& out) const override {
    out.write("metrics.txt", MetricsWriter(source.runs.front(), options.start_s).text());
  }
};

KVLAB_REGISTER(ExportFormat, OpenMetrics, "openmetrics", "metrics.txt, vLLM's metrics over time in the OpenMetrics text format", "");

}  // namespace

}  // namespace kvlab
