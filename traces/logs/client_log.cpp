#include "traces/logs/client_log.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/json_text.h"

namespace kvlab {

namespace {

using Json = nlohmann::json;

double number_in(const Json& value, const std::string& where) {
  if (!value.is_number() || !(value.get<double>() >= 0))
    throw InputError(fmt::format("{} is no number >= 0: {}", where, short_json(value)));
  return value.get<double>();
}

std::int64_t count_in(const Json& value, const std::string& where) {
  const double number = number_in(value, where);
  if (!(number < 1e9) || number != std::floor(number)) throw InputError(fmt::format("{} is no count: {}", where, short_json(value)));
  return static_cast<std::int64_t>(number);
}

std::string left_out(std::size_t failed, std::size_t warm_ups, std::size_t kept) {
  std::string note;
  const std::size_t all = failed + warm_ups + kept;
  if (failed > 0) note = fmt::format("{} of the log's {} requests failed and are left out\n", failed, all);
  if (warm_ups > 0) note += fmt::format("{} of the log's {} requests are of its warm-up and are left out\n", warm_ups, all);
  return note;
}

// One object with a list per quantity: ttfts, itls (s), output_lens, and where there are any start_times and errors.
class BenchResult {
 public:
  BenchResult(const Json& root, const std::string& file) : root_(root), file_(file) {}

  static bool is_one(const Json& root) {
    return root.is_object() && (root.contains("ttfts") || root.contains("mean_ttft_ms") || root.contains("request_throughput"));
  }

  [[nodiscard]] RequestLog read() const {
    const Json &ttfts = list("ttfts"), &gaps = list("itls"), &outputs = list("output_lens");
    RequestLog log;
    log.is_of_client = true;
    log.has_clock = root_.contains("start_times");
    std::size_t failed = 0;
    for (std::size_t i = 0; i < ttfts.size(); ++i) {
      const std::int64_t tokens = count_in(at(outputs, "output_lens", i), where("output_lens", i));
      if (has_failed(i) || tokens == 0) {
        ++failed;
        continue;
      }
      ServedRequest r;
      r.queued_s = log.has_clock ? number_in(at(list("start_times"), "start_times", i), where("start_times", i)) : 0;
      r.arrival_s = log.has_clock ? r.queued_s : static_cast<double>(i);
      r.first_token_s = r.queued_s + number_in(ttfts[i], where("ttfts", i));
      r.last_token_s = r.first_token_s + sum_of(at(gaps, "itls", i), where("itls", i));
      r.output_tokens = tokens;
      log.requests.push_back(r);
    }
    log.note = left_out(failed, 0, log.requests.size());
    return log;
  }

 private:
  [[nodiscard]] std::string where(const char* key, std::size_t i) const { return fmt::format("{}: '{}', entry {},", file_, key, i + 1); }

  [[nodiscard]] const Json& list(const char* key) const {
    const auto found = root_.find(key);
    if (found == root_.end())
      throw InputError(
          fmt::format("{}: is a benchmark's result without '{}', so with totals only; run it again with --save-detailed "
                      "(vllm bench serve) or --output-details (SGLang)",
                      file_, key));
    if (!found->is_array()) throw InputError(fmt::format("{}: '{}' is no list: {}", file_, key, short_json(*found)));
    return *found;
  }

  [[nodiscard]] const Json& at(const Json& values, const char* key, std::size_t i) const {
    if (values.size() != list("ttfts").size())
      throw InputError(fmt::format("{}: '{}' has {} entries, 'ttfts' {}", file_, key, values.size(), list("ttfts").size()));
    return values[i];
  }

  [[nodiscard]] bool has_failed(std::size_t i) const {
    if (!root_.contains("errors")) return false;
    const Json& error = at(list("errors"), "errors", i);
    const bool is_empty_text = error.is_string() && error.get_ref<const std::string&>().empty();
    return !error.is_null() && !is_empty_text;
  }

  static double sum_of(const Json& values, const std::string& where) {
    if (!values.is_array()) throw InputError(fmt::format("{} is no list: {}", where, short_json(values)));
    double sum = 0;
    for (const Json& value : values) sum += number_in(value, where);
    return sum;
  }

  const Json& root_;
  const std::string& file_;
};

// AIPerf: one object per request, {"metadata": {...}, "metrics": {NAME: {"value": ..., "unit": ...}}, "error": ...}.
class AiperfRow {
 public:
  AiperfRow(const Json& row, std::string where) : row_(row), where_(std::move(where)) {}

  static bool is_one(const Json& row) { return row.is_object() && row.contains("metadata") && row.contains("metrics"); }

  [[nodiscard]] bool is_warm_up() const { return metadata("benchmark_phase") == "warmup"; }
  [[nodiscard]] bool has_failed() const {
    const auto error = row_.find("error");
    return (error != row_.end() && !error->is_null()) || metadata("was_cancelled") == true;
  }
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
    const Json& all = row_["metadata"];
    return all.is_object() ? all.value(key, Json()) : Json();
  }
  [[nodiscard]] const Json& metric(const char* name) const {
    const Json& all = row_["metrics"];
    const auto found = all.find(name);
    if (found == all.end() || !found->is_object())
      throw InputError(fmt::format("{}: has no metric '{}'; AIPerf records it with --streaming", where_, name));
    return *found;
  }
  [[nodiscard]] double seconds(const char* name) const {
    const Json& m = metric(name);
    const Json unit = m.value("unit", Json("ms"));
    const double in_s = unit == "s" || unit == "sec" ? 1 : unit == "ms" ? 1e-3 : unit == "us" ? 1e-6 : unit == "ns" ? 1e-9 : 0;
    if (in_s == 0) throw InputError(fmt::format("{}: '{}' is in {}; known: s, ms, us, ns", where_, name, short_json(unit)));
    return in_s * number_in(m.value("value", Json()), where_ + ": '" + name + "'");
  }

  const Json& row_;
  std::string where_;
};

RequestLog read_aiperf(const std::string& text, const std::string& file) {
  RequestLog log;
  log.is_of_client = true;
  std::size_t failed = 0, warm_ups = 0, number = 0;
  std::optional<std::int64_t> origin_ns;  // instants since 1970 lose their nanoseconds in a double
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", file, number);
    refuse_deep_json(line, where);
    const Json parsed = Json::parse(line, nullptr, false);
    if (!AiperfRow::is_one(parsed)) throw InputError(where + ": not a row of AIPerf, as those above: it has no 'metadata' and 'metrics'");
    const AiperfRow row(parsed, where);
    if (!origin_ns) origin_ns = row.start_ns();
    if (row.is_warm_up())
      ++warm_ups;
    else if (row.has_failed())
      ++failed;
    else
      log.requests.push_back(row.read(*origin_ns));
  }
  log.note = left_out(failed, warm_ups, log.requests.size());
  return log;
}

}  // namespace

std::optional<RequestLog> read_client_log(const std::string& text, const std::string& file) {
  const std::string first = text.substr(0, text.find('\n'));
  refuse_deep_json(first, file);
  const Json row = Json::parse(first, nullptr, false);
  if (AiperfRow::is_one(row)) return read_aiperf(text, file);
  if (row.is_object() && !BenchResult::is_one(row)) return std::nullopt;
  refuse_deep_json(text, file);
  const Json root = Json::parse(text, nullptr, false);
  if (BenchResult::is_one(root)) return BenchResult(root, file).read();
  if (row.is_object()) throw InputError(file + ": holds several benchmark results, one per line; leave the one to compare with");
  return std::nullopt;
}

}  // namespace kvlab
