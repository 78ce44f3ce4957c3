#include "traces/arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/random.h"
#include "base/run_limit.h"
#include "base/text.h"
#include "traces/distributions.h"

namespace kvlab {

namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();
constexpr double kMaxRate = 1e9, kMaxSeconds = 9e6;
constexpr std::int64_t kMostAtOnce = 1 << 24;

// Constant or linear rate, or bursts, then a pause.
struct Stage {
  ClassName name;
  double rate = 0, to_rate = 0;  // per second
  bool has_equal_gaps = false;   // else exponential
  std::int64_t burst = 0;        // 0: use rates
  double every_s = 0;            // between bursts
  double for_s = 0, pause_s = 0;

  // Inverse of rate s + (to_rate - rate) s^2 / (2 for_s), expected requests up to `s` seconds.
  [[nodiscard]] double time_of(double requests) const {
    if (requests <= 0) return 0;
    const double growth = for_s == kEndless ? 0 : (to_rate - rate) / for_s;
    return 2 * requests / (rate + std::sqrt(std::max(0.0, rate * rate + 2 * growth * requests)));
  }
  [[nodiscard]] double expected_requests() const { return for_s == kEndless ? kEndless : (rate + to_rate) / 2 * for_s; }
};

class StagedArrivals final : public ArrivalProcess {
 public:
  StagedArrivals(std::vector<Stage> stages, std::uint64_t seed, bool are_classes)
      : stages_(std::move(stages)), seed_(seed), are_classes_(are_classes) {}

  Time next(Time /*recorded*/) override {
    for (; place_ < stages_.size(); leave_stage()) {
      const std::optional<double> at_s = next_in(stages_[place_]);
      if (!at_s) continue;
      check_within_run(begin_s_ + *at_s);
      return kStart + from_seconds(begin_s_ + *at_s);
    }
    return kNever;
  }
  [[nodiscard]] bool ends() const override { return stages_.back().for_s != kEndless; }
  [[nodiscard]] const ClassName* request_class() const override {
    return are_classes_ && place_ < stages_.size() ? &stages_[place_].name : nullptr;
  }

 private:
  void leave_stage() {
    begin_s_ += stages_[place_].for_s + stages_[place_].pause_s;
    ++place_;
    in_stage_ = 0;
    requests_ = 0;
  }

  // From the stage's begin; none: over.
  std::optional<double> next_in(const Stage& stage) {
    const std::int64_t number = in_stage_++;
    if (stage.burst > 0) {
      const double at_s = static_cast<double>(number / stage.burst) * stage.every_s;
      return at_s < stage.for_s ? std::optional(at_s) : std::nullopt;
    }
    if (stage.has_equal_gaps)
      requests_ = static_cast<double>(number);
    else
      requests_ += Draw{seed_, Purpose::kArrival, index_++}.exponential(1.0);
    return requests_ < stage.expected_requests() ? std::optional(stage.time_of(requests_)) : std::nullopt;
  }

  std::vector<Stage> stages_;
  std::uint64_t seed_;
  bool are_classes_;
  std::size_t place_ = 0;
  std::uint64_t index_ = 0;  // of draws
  std::int64_t in_stage_ = 0;
  double requests_ = 0;  // integral of the rate
  double begin_s_ = 0;
};

bool reads_equal_gaps(Params& p) {
  return p.choice("gaps", {"exponential", "constant"}, 0,
                  "exponential: a Poisson process with that rate; constant: requests at equal work") == 1;
}

void read_rates(Params& p, Stage& stage) {
  stage.rate = p.required<double>("rate_per_s", 0, kMaxRate, "arrivals per second, of a ramp at its begin");
  stage.to_rate = p.optional<double>("to_rate_per_s", stage.rate, 0, kMaxRate, "at the stage's end, if the rate changes");
  stage.has_equal_gaps = reads_equal_gaps(p);
  if (!p.is_describing() && stage.rate + stage.to_rate == 0)
    p.fail_at("rate_per_s", "a stage without arrivals: write 'pause_s' in the stage before it");
}

void read_bursts(Params& p, Stage& stage) {
  stage.burst = p.required<std::int64_t>("burst", 1, kMostAtOnce, "requests at once, in place of a rate");
  stage.every_s = p.required<double>("every_s", 1e-6, kMaxSeconds, "time from burst to burst");
}

void read_load(Params& p, Stage& stage) {
  const bool by_rate = p.has("rate_per_s"), by_bursts = p.has("burst");
  if (!p.is_describing() && by_rate == by_bursts)
    p.fail(
        "a stage needs either 'rate_per_s', with 'to_rate_per_s' for a ramp, or 'burst' with 'every_s'; without requests it is the "
        "'pause_s' of the stage before it");
  if (by_rate || p.is_describing()) read_rates(p, stage);
  if (by_bursts || p.is_describing()) read_bursts(p, stage);
}

Stage read_stage(Params& p, const std::string& name) {
  Stage stage;
  stage.name = ClassName(name);
  read_load(p, stage);
  stage.for_s = p.required<double>("for_s", 1e-6, kMaxSeconds, "how long the stage lasts");
  stage.pause_s = p.optional<double>("pause_s", 0, 0, kMaxSeconds, "time without arrivals after it");
  p.reject_unread();
  return stage;
}

// In sequence: {NAME: {rate_per_s, to_rate_per_s, gaps, burst, every_s, for_s, pause_s}}; NAME is the request class.
std::unique_ptr<ArrivalProcess> make_stages(Params& p, std::uint64_t seed) {
  if (p.is_describing()) {
    Params any = p.child("NAME", "stage");
    any.text("name", "", "of the stage and the class of its requests, in a list of stages; default: stage 1, ...");
    read_stage(any, "");
    return nullptr;
  }
  std::vector<Stage> stages;
  for (const std::string& name : p.keys()) {
    if (const std::string fault = fault_of_class_name(name); !fault.empty()) p.fail_at(name, fault);
    Params one = p.child(name, "stage '" + name + "'");
    stages.push_back(read_stage(one, name));
  }
  if (stages.empty()) p.fail("'stages' needs at least one stage, as '[{rate_per_s: 3, for_s: 20, pause_s: 30}]'");
  return std::make_unique<StagedArrivals>(std::move(stages), seed, true);
}

// from_per_s, to_per_s, over_s, gaps: linear, then constant.
std::unique_ptr<ArrivalProcess> make_ramp(Params& p, std::uint64_t seed) {
  Stage ramp, rest;
  ramp.rate = p.required<double>("from_per_s", 0, kMaxRate, "arrivals per second at the start");
  ramp.to_rate = p.required<double>("to_per_s", 1e-6, kMaxRate, "arrivals per second from 'over_s' on");
  ramp.for_s = p.required<double>("over_s", 1e-6, kMaxSeconds, "time in which the rate changes, linearly");
  ramp.has_equal_gaps = reads_equal_gaps(p);
  rest.rate = rest.to_rate = ramp.to_rate;
  rest.has_equal_gaps = ramp.has_equal_gaps;
  rest.for_s = kEndless;
  return std::make_unique<StagedArrivals>(std::vector<Stage>{ramp, rest}, seed, false);
}

std::unique_ptr<ArrivalProcess> make_bursts(Params& p, std::uint64_t /*seed*/) {
  Stage stage;
  stage.burst = p.required<std::int64_t>("requests", 1, kMostAtOnce, "requests at once; the first ones at the start");
  stage.every_s = p.required<double>("every_s", 1e-6, kMaxSeconds, "time from burst to burst");
  stage.for_s = kEndless;
  return std::make_unique<StagedArrivals>(std::vector<Stage>{stage}, 0, false);
}

constexpr double kMinRate = 1e-6;

double read_rate(Params& p, const std::string& key = "rate_per_s", double min = kMinRate) {
  return p.required<double>(key, min, kMaxRate, "arrivals per second");
}

Time later(Time now, double gap_s) {
  check_within_run(to_s(now) + gap_s);
  return now + from_seconds(gap_s);
}

// Independent gaps, summed in whole nanoseconds.
class Renewal final : public ArrivalProcess {
 public:
  Renewal(std::uint64_t seed, std::function<double(const Draw& draw)> gap_s) : seed_(seed), gap_s_(std::move(gap_s)) {}
  Time next(Time /*recorded*/) override {
    now_ = later(now_, gap_s_(Draw{seed_, Purpose::kArrival, index_++}));
    return now_;
  }

 private:
  std::uint64_t seed_;
  std::function<double(const Draw& draw)> gap_s_;
  std::uint64_t index_ = 0;
  Time now_{};
};

std::unique_ptr<ArrivalProcess> make_poisson(Params& p, std::uint64_t seed) {
  const double rate = read_rate(p);
  return std::make_unique<Renewal>(seed, [=](const Draw& draw) { return draw.exponential(1.0 / rate); });
}

std::unique_ptr<ArrivalProcess> make_gamma(Params& p, std::uint64_t seed) {
  const double rate = read_rate(p), cv = p.required<double>("cv", 0.01, 100, "coefficient of variation of the gaps");
  const double shape = 1.0 / (cv * cv);
  return std::make_unique<Renewal>(seed, [=](const Draw& draw) { return draw.gamma(shape, 1.0 / (rate * shape)); });
}

std::unique_ptr<ArrivalProcess> make_weibull(Params& p, std::uint64_t seed) {
  const double shape = p.optional<double>("shape", 1.0, 0.1, 100, "below 1: bursts");
  const double scale_s = 1.0 / (read_rate(p) * std::tgamma(1.0 + 1.0 / shape));
  return std::make_unique<Renewal>(seed, [=](const Draw& draw) { return draw.weibull(shape, scale_s); });
}

class Constant final : public ArrivalProcess {
 public:
  Constant(Params& p, std::uint64_t /*seed*/) : rate_(read_rate(p)) {}
  Time next(Time /*recorded*/) override { return later(kStart, static_cast<double>(index_++) / rate_); }

 private:
  double rate_;
  std::uint64_t index_ = 0;
};

// Poisson at two rates in turn: a unit-rate process on a clock that runs at the rate.
class OnOff final : public ArrivalProcess {
 public:
  OnOff(Params& p, std::uint64_t seed)
      : seed_(seed),
        rate_{read_rate(p, "on_rate_per_s"), p.optional<double>("off_rate_per_s", 0, 0, kMaxRate, "arrivals per second between bursts")},
        mean_s_{p.required<double>("on_s", 1e-6, 1e6, "mean length of a burst"),
                p.required<double>("off_s", 1e-6, 1e6, "mean length of a pause")},
        is_constant_(p.choice("phases", {"exponential", "constant"}, 0, "how lengths of bursts and pauses vary") == 1) {
    left_s_ = phase_s();
  }

  Time next(Time /*recorded*/) override {
    double work = Draw{seed_, Purpose::kArrival, index_++}.exponential(1.0);
    double wait_s = 0;
    for (;;) {
      const double rate = rate_[phase_ % 2];
      if (rate * left_s_ >= work) break;
      work -= rate * left_s_;
      wait_s += left_s_;
      ++phase_;
      left_s_ = phase_s();
    }
    const double last_s = work / rate_[phase_ % 2];
    left_s_ -= last_s;
    now_ = later(now_, wait_s + last_s);
    return now_;
  }

 private:
  [[nodiscard]] double phase_s() const {
    const double mean_s = mean_s_[phase_ % 2];
    return is_constant_ ? mean_s : Draw{seed_, Purpose::kBurst, phase_}.exponential(mean_s);
  }

  std::uint64_t seed_;
  double rate_[2];  // in a burst, in a pause
  double mean_s_[2];
  bool is_constant_;
  std::uint64_t index_ = 0, phase_ = 0;
  double left_s_ = 0;  // of the phase
  Time now_{};
};

class Recorded final : public ArrivalProcess {
 public:
  Recorded(Params& p, std::uint64_t /*seed*/) : scale_(p.optional<double>("scale", 1.0, 1e-6, 1e6, "the recorded rate times this")) {}
  Time next(Time recorded) override {
    if (scale_ == 1.0) return recorded;
    const double scaled_ns = static_cast<double>(ns(recorded)) / scale_;
    check_within_run(scaled_ns * 1e-9);
    return Time(Span(std::llround(scaled_ns)));
  }

 private:
  double scale_;
};

class ClosedLoop final : public ArrivalProcess {
 public:
  ClosedLoop(Params& p, std::uint64_t seed)
      : seed_(seed),
        concurrency_(p.required<std::int32_t>("concurrency", 1, 1 << 24, "sessions in progress at once")),
        think_(read_spans(p, "think_time", "pause between the end of a session and the next one's arrival")),
        ramp_(p.seconds("ramp_s", 0, 0, 9e6, "the first sessions start evenly over this time; 0: all at once")),
        idle_cap_(p.seconds("idle_cap_s", 0, 0, 9e6,
                            "with no request in progress, all arrivals to come move earlier together, so that the next one waits at most "
                            "this long; 0: they do not; AgentX: 10")) {}
  Time next(Time /*recorded*/) override { return kStart; }
  std::int32_t concurrency() const override { return concurrency_; }
  Span think_time(std::uint64_t session_index) const override { return (*think_)(Draw{seed_, Purpose::kThinkTime, session_index, kLoop}); }
  Span ramp() const override { return ramp_; }
  Span idle_cap() const override { return idle_cap_; }

 private:
  static constexpr std::uint64_t kLoop = ~std::uint64_t{0};  // disjoint from steps of session turns
  std::uint64_t seed_;
  std::int32_t concurrency_;
  std::unique_ptr<SpanDistribution> think_;
  Span ramp_, idle_cap_;
};

using Make = std::unique_ptr<ArrivalProcess> (*)(Params& p, std::uint64_t seed);

template <class Process>
std::unique_ptr<ArrivalProcess> make(Params& p, std::uint64_t seed) {
  return std::make_unique<Process>(p, seed);
}

constexpr Named<Make> kProcesses[] = {
    {"poisson", make_poisson}, {"gamma", make_gamma},     {"weibull", make_weibull},         {"constant", make<Constant>},
    {"on_off", make<OnOff>},   {"trace", make<Recorded>}, {"closed_loop", make<ClosedLoop>}, {"stages", make_stages},
    {"ramp", make_ramp},       {"bursts", make_bursts}};

}  // namespace

const std::vector<std::string>& arrival_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& one : kProcesses) all.emplace_back(one.name);
    return all;
  }();
  return names;
}

std::string fault_of_class_name(const std::string& name) {
  if (!name.empty() && name.size() <= ClassName::kMaxBytes && name.find_first_of("\",\n\r\\") == std::string::npos) return "";
  return "'" + name + "' cannot name a class: 1 to 23 bytes, without comma, quote or backslash";
}

std::unique_ptr<ArrivalProcess> make_arrivals(const std::string& name, Params& p, std::uint64_t seed) {
  if (double rate = 0; parse_real(name, rate))
    p.fail(fmt::format("'arrival': {0} does not say which process; write 'arrival: {{poisson: {{rate_per_s: {0}}}}}', or another of {1}",
                       name, join(arrival_names(), ", ")));
  const auto* const process = std::find_if(std::begin(kProcesses), std::end(kProcesses), [&](const auto& one) { return one.name == name; });
  if (process == std::end(kProcesses)) p.fail("unknown arrival process '" + name + "'" + suggestion(name, arrival_names()));
  std::unique_ptr<ArrivalProcess> made = process->value(p, seed);
  p.reject_unread();
  return made;
}

}  // namespace kvlab
