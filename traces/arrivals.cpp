#include "traces/arrivals.h"

#include <fmt/format.h>

#include <cmath>

#include "base/random.h"
#include "base/run_limit.h"
#include "base/text.h"
#include "traces/distributions.h"
#include "traces/stages.h"

namespace kvlab {

namespace {

constexpr double kMinRate = 1e-6;
constexpr double kMaxRate = 1e9;

double read_rate(Params& p, const std::string& key = "rate_per_s", double min = kMinRate) {
  return p.required<double>(key, min, kMaxRate, "arrivals per second");
}

Time later(Time now, double gap_s) {
  check_within_run(to_s(now) + gap_s);
  return now + from_seconds(gap_s);
}

// Independent gaps, summed in whole nanoseconds.
class Renewal : public ArrivalProcess {
 public:
  explicit Renewal(std::uint64_t seed) : seed_(seed) {}
  Time next(Time /*recorded*/) final {
    now_ = later(now_, gap_s(Draw{seed_, Purpose::kArrival, index_++}));
    return now_;
  }

 protected:
  [[nodiscard]] virtual double gap_s(const Draw& draw) const = 0;

 private:
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
  Time now_{};
};

class Poisson final : public Renewal {
 public:
  Poisson(Params& p, std::uint64_t seed) : Renewal(seed), rate_(read_rate(p)) {}

 private:
  double gap_s(const Draw& draw) const override { return draw.exponential(1.0 / rate_); }
  double rate_;
};

class Gamma final : public Renewal {
 public:
  Gamma(Params& p, std::uint64_t seed) : Renewal(seed), rate_(read_rate(p)) {
    const double cv = p.required<double>("cv", 0.01, 100, "coefficient of variation of the gaps");
    shape_ = 1.0 / (cv * cv);
  }

 private:
  double gap_s(const Draw& draw) const override { return draw.gamma(shape_, 1.0 / (rate_ * shape_)); }
  double rate_, shape_ = 1;
};

class Weibull final : public Renewal {
 public:
  Weibull(Params& p, std::uint64_t seed)
      : Renewal(seed),
        shape_(p.optional<double>("shape", 1.0, 0.1, 100, "below 1: bursts")),
        scale_s_(1.0 / (read_rate(p) * std::tgamma(1.0 + 1.0 / shape_))) {}

 private:
  double gap_s(const Draw& draw) const override { return draw.weibull(shape_, scale_s_); }
  double shape_, scale_s_;
};

class Constant final : public ArrivalProcess {
 public:
  explicit Constant(Params& p) : rate_(read_rate(p)) {}
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
  explicit Recorded(Params& p) : scale_(p.optional<double>("scale", 1.0, 1e-6, 1e6, "the recorded rate times this")) {}
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

}  // namespace

const std::vector<std::string>& arrival_names() {
  static const std::vector<std::string> names{"poisson", "gamma",       "weibull", "constant", "on_off",
                                              "trace",   "closed_loop", "stages",  "ramp",     "bursts"};
  return names;
}

std::string fault_of_class_name(const std::string& name) {
  if (!name.empty() && name.size() <= ClassName::kMaxBytes && name.find_first_of("\",\n\r\\") == std::string::npos) return "";
  return "'" + name + "' cannot name a class: 1 to 23 bytes, without comma, quote or backslash";
}

std::unique_ptr<ArrivalProcess> make_arrivals(const std::string& name, Params& p, std::uint64_t seed) {
  std::unique_ptr<ArrivalProcess> made;
  if (double rate = 0; parse_real(name, rate))
    p.fail(fmt::format("'arrival': {0} does not say which process; write 'arrival: {{poisson: {{rate_per_s: {0}}}}}', or another of {1}",
                       name, join(arrival_names(), ", ")));
  if (name == "poisson")
    made = std::make_unique<Poisson>(p, seed);
  else if (name == "gamma")
    made = std::make_unique<Gamma>(p, seed);
  else if (name == "weibull")
    made = std::make_unique<Weibull>(p, seed);
  else if (name == "constant")
    made = std::make_unique<Constant>(p);
  else if (name == "on_off")
    made = std::make_unique<OnOff>(p, seed);
  else if (name == "trace")
    made = std::make_unique<Recorded>(p);
  else if (name == "closed_loop")
    made = std::make_unique<ClosedLoop>(p, seed);
  else if (name == "stages")
    made = make_stages(p, seed);
  else if (name == "ramp")
    made = make_ramp(p, seed);
  else if (name == "bursts")
    made = make_bursts(p);
  else
    p.fail("unknown arrival process '" + name + "'" + suggestion(name, arrival_names()));
  p.reject_unread();
  return made;
}

}  // namespace kvlab
