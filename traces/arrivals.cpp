#include "traces/arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/random.h"
#include "base/text.h"
#include "base/time.h"
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

class StagedArrivals {
 public:
  StagedArrivals(std::vector<Stage> stages, std::uint64_t seed, bool are_classes)
      : stages_(std::move(stages)), seed_(seed), are_classes_(are_classes) {}

  Arrival operator()(Time /*recorded*/) {
    for (; place_ < stages_.size(); leave_stage()) {
      const std::optional<double> at_s = next_in(stages_[place_]);
      if (!at_s) continue;
      check_within_run(begin_s_ + *at_s);
      return {kStart + from_seconds(begin_s_ + *at_s), are_classes_ ? &stages_[place_].name : nullptr};
    }
    return {kNever};
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
      const std::int64_t bursts = number / stage.burst;
      const double at_s = static_cast<double>(bursts) * stage.every_s;
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
ArrivalProcess make_stages(Params& p, std::uint64_t seed) {
  if (p.is_describing()) {
    Params any = p.child("NAME", "stage");
    any.text("name", "", "of the stage and the class of its requests, in a list of stages; default: stage 1, ...");
    read_stage(any, "");
    return {};
  }
  std::vector<Stage> stages;
  for (const std::string& name : p.keys()) {
    if (const std::string fault = fault_of_class_name(name); !fault.empty()) p.fail_at(name, fault);
    Params one = p.child(name, "stage '" + name + "'");
    stages.push_back(read_stage(one, name));
  }
  if (stages.empty()) p.fail("'stages' needs at least one stage, as '[{rate_per_s: 3, for_s: 20, pause_s: 30}]'");
  return {.next = StagedArrivals(std::move(stages), seed, true), .ends = true};
}

// from_per_s, to_per_s, over_s, gaps: linear, then constant.
ArrivalProcess make_ramp(Params& p, std::uint64_t seed) {
  Stage ramp, rest;
  ramp.rate = p.required<double>("from_per_s", 0, kMaxRate, "arrivals per second at the start");
  ramp.to_rate = p.required<double>("to_per_s", 1e-6, kMaxRate, "arrivals per second from 'over_s' on");
  ramp.for_s = p.required<double>("over_s", 1e-6, kMaxSeconds, "time in which the rate changes, linearly");
  ramp.has_equal_gaps = reads_equal_gaps(p);
  rest.rate = rest.to_rate = ramp.to_rate;
  rest.has_equal_gaps = ramp.has_equal_gaps;
  rest.for_s = kEndless;
  return {StagedArrivals({ramp, rest}, seed, false)};
}

ArrivalProcess make_bursts(Params& p, std::uint64_t /*seed*/) {
  Stage stage;
  stage.burst = p.required<std::int64_t>("requests", 1, kMostAtOnce, "requests at once; the first ones at the start");
  stage.every_s = p.required<double>("every_s", 1e-6, kMaxSeconds, "time from burst to burst");
  stage.for_s = kEndless;
  return {StagedArrivals({stage}, 0, false)};
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
ArrivalProcess renewal(std::uint64_t seed, std::function<double(const Draw& draw)> gap_s) {
  return {[=, gap_s = std::move(gap_s), index = std::uint64_t{0}, now = Time{}](Time /*recorded*/) mutable -> Arrival {
    now = later(now, gap_s(Draw{seed, Purpose::kArrival, index++}));
    return {now};
  }};
}

ArrivalProcess make_poisson(Params& p, std::uint64_t seed) {
  const double rate = read_rate(p);
  return renewal(seed, [=](const Draw& draw) { return draw.exponential(1.0 / rate); });
}

ArrivalProcess make_gamma(Params& p, std::uint64_t seed) {
  const double rate = read_rate(p), cv = p.required<double>("cv", 0.01, 100, "coefficient of variation of the gaps");
  const double shape = 1.0 / (cv * cv);
  return renewal(seed, [=](const Draw& draw) { return draw.gamma(shape, 1.0 / (rate * shape)); });
}

ArrivalProcess make_weibull(Params& p, std::uint64_t seed) {
  const double shape = p.optional<double>("shape", 1.0, 0.1, 100, "below 1: bursts");
  const double scale_s = 1.0 / (read_rate(p) * std::tgamma(1.0 + 1.0 / shape));
  return renewal(seed, [=](const Draw& draw) { return draw.weibull(shape, scale_s); });
}

ArrivalProcess make_constant(Params& p, std::uint64_t /*seed*/) {
  return {[rate = read_rate(p), index = std::uint64_t{0}](Time /*recorded*/) mutable -> Arrival {
    return {later(kStart, static_cast<double>(index++) / rate)};
  }};
}

// Poisson at two rates in turn: a unit-rate process on a clock that runs at the rate.
class OnOff {
 public:
  OnOff(Params& p, std::uint64_t seed)
      : seed_(seed),
        rate_{read_rate(p, "on_rate_per_s"), p.optional<double>("off_rate_per_s", 0, 0, kMaxRate, "arrivals per second between bursts")},
        mean_s_{p.required<double>("on_s", 1e-6, 1e6, "mean length of a burst"),
                p.required<double>("off_s", 1e-6, 1e6, "mean length of a pause")},
        is_constant_(p.choice("phases", {"exponential", "constant"}, 0, "how lengths of bursts and pauses vary") == 1) {
    left_s_ = phase_s();
  }

  Arrival operator()(Time /*recorded*/) {
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
    return {now_};
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

ArrivalProcess make_on_off(Params& p, std::uint64_t seed) { return {OnOff(p, seed)}; }

ArrivalProcess make_recorded(Params& p, std::uint64_t /*seed*/) {
  return {[scale = p.optional<double>("scale", 1.0, 1e-6, 1e6, "the recorded rate times this")](Time recorded) -> Arrival {
    if (scale == 1.0) return {recorded};
    const double scaled_ns = static_cast<double>(ns(recorded)) / scale;
    check_within_run(scaled_ns * 1e-9);
    return {Time(Span(std::llround(scaled_ns)))};
  }};
}

ArrivalProcess make_closed_loop(Params& p, std::uint64_t seed) {
  constexpr std::uint64_t kLoop = ~std::uint64_t{0};  // disjoint from steps of session turns
  ArrivalProcess made{[](Time /*recorded*/) -> Arrival { return {kStart}; }};
  made.loop.concurrency = p.required<std::int32_t>("concurrency", 1, 1 << 24, "sessions in progress at once");
  const SpanDistribution think = read_spans(p, "think_time", "pause between the end of a session and the next one's arrival");
  made.loop.think_time = [=](std::uint64_t session_index) { return think(Draw{seed, Purpose::kThinkTime, session_index, kLoop}); };
  made.loop.ramp = p.seconds("ramp_s", 0, 0, 9e6, "the first sessions start evenly over this time; 0: all at once");
  made.loop.idle_cap = p.seconds("idle_cap_s", 0, 0, 9e6,
                                 "with no request in progress, all arrivals to come move earlier together, so that the next one waits at "
                                 "most this long; 0: they do not; AgentX: 10");
  return made;
}

using Make = ArrivalProcess (*)(Params& p, std::uint64_t seed);

constexpr Named<Make> kProcesses[] = {
    {"poisson", make_poisson}, {"gamma", make_gamma},    {"weibull", make_weibull},         {"constant", make_constant},
    {"on_off", make_on_off},   {"trace", make_recorded}, {"closed_loop", make_closed_loop}, {"stages", make_stages},
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

ArrivalProcess make_arrivals(const std::string& name, Params& p, std::uint64_t seed) {
  if (double rate = 0; parse_real(name, rate))
    p.fail(fmt::format("'arrival': {0} does not say which process; write 'arrival: {{poisson: {{rate_per_s: {0}}}}}', or another of {1}",
                       name, join(arrival_names(), ", ")));
  const auto* const process = std::find_if(std::begin(kProcesses), std::end(kProcesses), [&](const auto& one) { return one.name == name; });
  if (process == std::end(kProcesses)) p.fail("unknown arrival process '" + name + "'" + suggestion(name, arrival_names()));
  ArrivalProcess made = process->value(p, seed);
  p.reject_unread();
  return made;
}

}  // namespace kvlab
