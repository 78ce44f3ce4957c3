#include <fmt/format.h>

#include "base/error.h"
#include "base/json_text.h"
#include "traces/logs/log_format.h"
#include "traces/seen_ids.h"

namespace kvlab {

namespace {

using Json = nlohmann::json;

// {"metadata": {...}, "metrics": {NAME: {"value": ..., "unit": ...}}, "error": ...}.
class AiperfRow {
 public:
  AiperfRow(const Json& row, std::string where) : row_(row), where_(std::move(where)) {}

  static bool is_one(const Json& row) { return row.is_object() && row.contains("metadata") && row.contains("metrics"); }

  [[nodiscard]] bool is_warm_up() const { return metadata("benchmark_phase") == "warmup"; }
  // "": none.
  [[nodiscard]] std::string id() const {
    const Json id = metadata("x_request_id");
    return id.is_string() ? id.get<std::string>() : "";
  }
  [[nodiscard]] bool is_cancelled() const { return metadata("was_cancelled") == true; }
  [[nodiscard]] bool has_failed() const { return member_of(row_, {"error"}) != nullptr; }
  [[nodiscard]] std::int64_t start_ns() const {
    const Json start = metadata("request_start_ns");
    if (!start.is_number_integer()) throw InputError(where_ + ": 'metadata' has no 'request_start_ns' in whole nanoseconds");
    return start.get<std::int64_t>();
  }
  [[nodiscard]] ServedRequest read(std::int64_t origin_ns) const {
    ServedRequest r;
    r.arrival_s = r.queued_s = static_cast<double>(start_ns() - origin_ns) * 1e-9;
    r.first_token_s = r.queued_s + seconds("time_to_first_token");
    r.last_token_s = r.queued_s + seconds("request_latency");
    const char* const tokens = row_["metrics"].contains("output_sequence_length") ? "output_sequence_length" : "output_token_count";
    r.output_tokens = count_in(metric(tokens).value("value", Json()), where_ + ": '" + tokens + "'");
    if (r.output_tokens < 1) throw InputError(where_ + ": '" + tokens + "' is 0 in a request that did not fail");
    if (r.last_token_s < r.first_token_s) throw InputError(where_ + ": 'request_latency' is below 'time_to_first_token'");
    return r;
  }

 private:
  [[nodiscard]] Json metadata(const char* key) const {
    const Json* const value = member_of(row_, {"metadata", key});
    return value == nullptr ? Json() : *value;
  }
  [[nodiscard]] const Json& metric(const char* name) const {
    const Json* const found = member_of(row_, {"metrics", name});
    if (found == nullptr || !found->is_object())
      throw InputError(fmt::format("{}: has no metric '{}'; AIPerf records it with --streaming", where_, name));
    return *found;
  }
  [[nodiscard]] double seconds(const char* name) const {
    const Json& m = metric(name);
    const Json unit = m.value("unit", Json("ms"));
    return seconds_in(m.value("value", Json()), unit.is_string() ? unit.get<std::string>() : "?", where_ + ": '" + name + "'");
  }

  const Json& row_;
  std::string where_;
};

RealLog read_aiperf_rows(const LogText& text) {
  RealLog log;
  log.is_of_client = true;
  LeftOut left_out;
  SeenIds seen;
  std::optional<std::int64_t> origin_ns;  // instants since 1970 lose nanoseconds in a double
  text.each_line([&](const std::string& line, const std::string& where) {
    refuse_deep_json(line, where);
    const Json parsed = Json::parse(line, nullptr, false);
    if (!AiperfRow::is_one(parsed)) throw InputError(where + ": not a row of AIPerf, as those above: it has no 'metadata' and 'metrics'");
    const AiperfRow row(parsed, where);
    if (!origin_ns) origin_ns = row.start_ns();
    const std::string id = row.id();
    if (!id.empty() && !seen.is_first(id))
      left_out.add(kRepeatedId);
    else if (row.is_warm_up())
      left_out.add("are of its warm-up");
    else if (row.is_cancelled())
      left_out.add("were cancelled");
    else if (row.has_failed())
      left_out.add("failed");
    else
      log.requests.push_back(row.read(*origin_ns));
  });
  log.note = left_out.note(log.requests.size());
  return log;
}

// AIPerf's profile_export.jsonl.
class AiperfRows final : public LogFormat {
 public:
  explicit AiperfRows(Params& /*none*/) {}
  [[nodiscard]] bool recognises(const LogText& log) const override { return AiperfRow::is_one(log.first_line()); }
  [[nodiscard]] RealLog read(const LogText& log) const override { return read_aiperf_rows(log); }
};

KVLAB_REGISTER(LogFormat, AiperfRows, "aiperf_rows", "AIPerf's profile_export.jsonl: an object per request", "");

}  // namespace

}  // namespace kvlab
