#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "traces/logs/log_format.h"

namespace kvlab {

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Seconds, per request or token gap ("itl").
constexpr std::pair<const char*, const char*> kHistograms[] = {{"vllm:time_to_first_token_seconds", "ttft"},
                                                               {"vllm:request_time_per_output_token_seconds", "tpot"},
                                                               {"vllm:inter_token_latency_seconds", "itl"},
                                                               {"vllm:e2e_request_latency_seconds", "e2e"}};

// Prometheus text sample: name{labels} value [timestamp].
struct PrometheusSample {
  std::string name, le, model, others;  // bucket limit, model, all but the limit
  double value = 0;
};

double prometheus_number(const std::string& text, const std::string& where) {
  double value = 0;
  if (text == "+Inf" || text == "Inf" || text == "inf") return kNoLimit;
  if (!parse_real(text, value)) throw InputError(fmt::format("{}: '{}' is no number", where, text));
  return value;
}

class SampleParser {
 public:
  SampleParser(const std::string& line, std::string where) : line_(line), where_(std::move(where)) {}

  [[nodiscard]] PrometheusSample parse() {
    PrometheusSample s;
    const std::size_t end = std::min(line_.find_first_of("{ \t"), line_.size());
    s.name = line_.substr(0, end);
    at_ = end;
    if (at_ < line_.size() && line_[at_] == '{') read_labels(s);
    std::istringstream rest(line_.substr(at_));
    std::string value;
    if (!(rest >> value)) throw InputError(where_ + ": a sample without a value");
    s.value = prometheus_number(value, where_);
    return s;
  }

 private:
  void read_labels(PrometheusSample& s) {
    for (++at_; at_ < line_.size() && line_[at_] != '}';) {
      const std::size_t equals = line_.find("=\"", at_);
      if (equals == std::string::npos) break;
      const std::string key = line_.substr(at_, equals - at_);
      std::string value;
      for (at_ = equals + 2; at_ < line_.size() && line_[at_] != '"'; ++at_) {
        if (line_[at_] == '\\' && at_ + 1 < line_.size()) ++at_;
        value += line_[at_];
      }
      at_ = line_.find_first_not_of("\", ", at_);
      if (at_ == std::string::npos) break;
      if (key == "le")
        s.le = value;
      else
        s.others += key + "=" + value + "\n";
      if (key == "model_name") s.model = value;
    }
    if (at_ >= line_.size()) throw InputError(where_ + ": labels without '}'");
    ++at_;
  }

  const std::string& line_;
  std::string where_;
  std::size_t at_ = 0;
};

class Histogram {
 public:
  explicit Histogram(std::string name = "") : name_(std::move(name)) {}

  void add(const PrometheusSample& s, std::string_view suffix, const std::string& where) {
    Part& part = parts_[s.others];
    const Number number{s.value, where};
    const std::string series = name_ + std::string(suffix) + (s.le.empty() ? "" : "{le=\"" + s.le + "\"}");
    if (!(s.value >= 0) || !std::isfinite(s.value))
      throw InputError(fmt::format("{}: {} = {:g} is no number from 0", where, series, s.value));
    if (suffix != "_sum" && (s.value != std::floor(s.value) || s.value > kMostObservations))
      throw InputError(fmt::format("{}: {} = {:g} is no number of observations", where, series, s.value));
    if (suffix == "_bucket")
      part.up_to[prometheus_number(s.le, where)] = number;
    else if (suffix == "_sum")
      part.sum = number;
    else if (suffix == "_count")
      part.count = number;
  }

  // Throws InputError with line and series.
  void check() const {
    for (const auto& [labels, part] : parts_) {
      check_buckets(part);
      check_sum(part);
      if (!part.up_to.empty() && !parts_.begin()->second.has_limits_of(part))
        throw InputError(fmt::format("{}: {}_bucket has other limits than the same histogram of another engine",
                                     part.up_to.begin()->second.where, name_));
    }
  }

  [[nodiscard]] double count() const {
    double all = 0;
    for (const auto& [labels, part] : parts_) all += part.count.value;
    return all;
  }

  void add_statistics(const char* metric, RealLog& log) const {
    double sum = 0;
    for (const auto& [labels, part] : parts_) sum += part.sum.value;
    if (count() <= 0) return;
    log.statistics.push_back({metric, "mean", 1e3 * sum / count()});
    for (const int p : {50, 90, 95, 99}) log.statistics.push_back(quantile(metric, p));
  }

 private:
  struct Number {
    double value = 0;
    std::string where;  // "": not in the file
  };
  struct Part {  // of one engine
    std::map<double, Number> up_to;
    Number sum, count;

    [[nodiscard]] bool has_limits_of(const Part& other) const {
      return std::ranges::equal(up_to, other.up_to, [](const auto& a, const auto& b) { return a.first == b.first; });
    }
  };
  static constexpr double kMostObservations = 9e15;  // exact in a double

  void check_buckets(const Part& part) const {
    if (part.up_to.empty()) return;
    const Number* before = nullptr;
    for (const auto& [limit, number] : part.up_to) {
      if (before != nullptr && number.value < before->value)
        throw InputError(
            fmt::format("{}: {}_bucket up to {:g} s has {:g} observations, and a smaller limit has {:g} ({}): its counts are cumulative",
                        number.where, name_, limit, number.value, before->value, before->where));
      before = &number;
    }
    const auto& [last, all] = *part.up_to.rbegin();
    if (std::isfinite(last))
      throw InputError(fmt::format("{}: {} has no bucket with le=\"+Inf\": the file is cut short", all.where, name_));
    if (part.count.where.empty()) throw InputError(fmt::format("{}: {} has buckets and no {}_count", all.where, name_, name_));
    if (part.count.value != all.value)
      throw InputError(fmt::format("{}: {}_count = {:g}, and its bucket with le=\"+Inf\" has {:g} ({})", part.count.where, name_,
                                   part.count.value, all.value, all.where));
  }

  // Between the sums of lower and of upper limits.
  void check_sum(const Part& part) const {
    if (part.count.where.empty() != part.sum.where.empty())
      throw InputError(
          fmt::format("{}: {} has no {}", part.sum.where + part.count.where, name_, part.sum.where.empty() ? "_sum" : "_count"));
    if (part.count.value == 0 && part.sum.value > 0)
      throw InputError(fmt::format("{}: {}_sum = {:g} of no observations", part.sum.where, name_, part.sum.value));
    double least = 0, most = 0, from = 0, below = 0;
    for (const auto& [limit, number] : part.up_to) {
      const double here = number.value - below;
      least += here * from;
      if (here > 0) most += here * limit;
      below = number.value, from = limit;
    }
    constexpr double kRounding = 1e-6;
    if (part.up_to.empty() || (part.sum.value >= least * (1 - kRounding) && part.sum.value <= most * (1 + kRounding) + kRounding)) return;
    throw InputError(
        fmt::format("{}: {}_sum = {:g} s, and its buckets allow {:g} to {:g} s", part.sum.where, name_, part.sum.value, least, most));
  }

  // All engines have the same limits.
  [[nodiscard]] std::map<double, double> up_to() const {
    std::map<double, double> all;
    for (const auto& [labels, part] : parts_)
      for (const auto& [limit, observed] : part.up_to) all[limit] += observed.value;
    return all;
  }

  // Linear in the bucket, as PromQL's histogram_quantile. No value in the unlimited bucket.
  [[nodiscard]] LogStatistic quantile(const char* metric, int p) const {
    const double rank = p / 100.0 * count();
    LogStatistic s{metric, fmt::format("p{}", p), std::numeric_limits<double>::quiet_NaN(), std::pair{0.0, kNoLimit}};
    double below = 0, from = 0;
    for (const auto& [limit, observed] : up_to()) {
      if (observed >= rank && observed > below) {
        s.bounds_ms = std::pair{1e3 * from, 1e3 * limit};
        if (std::isfinite(limit)) s.value_ms = 1e3 * (from + (limit - from) * (rank - below) / (observed - below));
        return s;
      }
      below = observed;
      from = limit;
    }
    s.bounds_ms = std::pair{1e3 * from, kNoLimit};
    return s;
  }

  std::string name_;
  std::map<std::string, Part> parts_;
};

class MetricsText {
 public:
  explicit MetricsText(const LogText& log) : file_(log.file()) {
    log.each_line([this](const std::string& line, const std::string& where) {
      if (line.starts_with("vllm:")) add(line.ends_with('\r') ? line.substr(0, line.size() - 1) : line, where);
    });
  }

  [[nodiscard]] RealLog read() const {
    RealLog log;
    log.is_of_client = true;  // times begin at the API server
    log.has_clock = false;
    log.model = model_;
    for (const auto& [name, histogram] : histograms_) histogram.check();
    for (const auto& [name, metric] : kHistograms)
      if (const auto found = histograms_.find(name); found != histograms_.end()) found->second.add_statistics(metric, log);
    if (log.statistics.empty())
      throw InputError(file_ +
                       ": its histograms (vllm:time_to_first_token_seconds, vllm:e2e_request_latency_seconds, ...) have no observations");
    if (const auto e2e = histograms_.find("vllm:e2e_request_latency_seconds"); e2e != histograms_.end())
      log.num_completed = static_cast<std::int64_t>(e2e->second.count());
    log.note =
        "histograms since the server's start, warm-up requests included: means are exact; a quantile is known to its bucket, real_lo to "
        "real_hi: 'real' is interpolated linearly in it, and 'diff' is from its nearest bound\n";
    return log;
  }

 private:
  void add(const std::string& line, const std::string& where) {
    for (const auto& [name, metric] : kHistograms) {
      const std::string_view text = line;
      const std::string_view base = name;
      if (!text.starts_with(base)) continue;
      const std::size_t end = text.find_first_of("{ \t");
      const std::string_view suffix = text.substr(base.size(), end - base.size());
      if (suffix != "_bucket" && suffix != "_sum" && suffix != "_count") continue;
      const PrometheusSample s = SampleParser(line, where).parse();
      if (!s.model.empty() && !model_.empty() && s.model != model_)
        throw InputError(fmt::format("{}: metrics of another model than '{}': '{}'; leave the lines of one", where, model_, s.model));
      model_ = s.model;
      histograms_.try_emplace(name, name).first->second.add(s, suffix, where);
    }
  }

  std::string file_, model_;
  std::map<std::string, Histogram> histograms_;
};

// vLLM's /metrics endpoint.
bool is_vllm_metrics_log(const LogText& log) {
  const std::string& text = log.text();
  return text.starts_with("vllm:") || (text.starts_with("#") && text.find("\nvllm:") != std::string::npos);
}

RealLog read_vllm_metrics_log(const LogText& log) { return MetricsText(log).read(); }

using VllmMetrics = LogFormatOf<is_vllm_metrics_log, read_vllm_metrics_log>;

KVLAB_REGISTER(LogFormat, VllmMetrics, "vllm_metrics", "vLLM's /metrics: histograms in the Prometheus text format", "");

}  // namespace

}  // namespace kvlab
