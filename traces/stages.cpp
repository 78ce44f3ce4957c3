#include "traces/stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/run_limit.h"

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

}  // namespace

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

std::unique_ptr<ArrivalProcess> make_bursts(Params& p) {
  Stage stage;
  stage.burst = p.required<std::int64_t>("requests", 1, kMostAtOnce, "requests at once; the first ones at the start");
  stage.every_s = p.required<double>("every_s", 1e-6, kMaxSeconds, "time from burst to burst");
  stage.for_s = kEndless;
  return std::make_unique<StagedArrivals>(std::vector<Stage>{stage}, 0, false);
}

}  // namespace kvlab
