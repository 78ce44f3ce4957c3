#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/picoseconds.h"
#include "serving/device.h"
#include "serving/step.h"
#include "serving/totals.h"

namespace kvlab {

// Uniform decode steps that are priced but not carried out. Iteration i (from 1) processes the oldest output in flight and plans a step
// with device time base + (i - 1) * slope.
struct DecodeStretch : DecodeTimes {
  std::int64_t iterations = 0;  // 0: none
  Picoseconds gap{};            // host time between device steps, at depth 1
  bool waits = false;           // requests wait during it

  // n from 0.
  [[nodiscard]] StepTime step(std::int64_t n) const {
    return each.empty() ? StepTime{base + slope * n, policy} : each[static_cast<std::size_t>(n)];
  }
  // For the first n steps.
  [[nodiscard]] Int128 device_time(std::int64_t n) const {
    if (each.empty()) return progression_sum(base, slope, n);
    return std::accumulate(each.begin(), each.begin() + n, Int128{0}, [](Int128 sum, const StepTime& t) { return sum + t.total.count(); });
  }
  // The KV policy's part of the first n steps.
  [[nodiscard]] Picoseconds policy_times(std::int64_t n) const {
    if (each.empty()) return policy * n;
    return std::accumulate(each.begin(), each.begin() + n, Picoseconds{},
                           [](Picoseconds sum, const StepTime& t) { return sum + t.policy; });
  }
  [[nodiscard]] Picoseconds steps_time(std::int64_t n) const {  // with gaps
    return Picoseconds(static_cast<std::int64_t>(device_time(n))) + gap * n;
  }

  // The largest n <= most with steps_time(n) < limit (<= limit if inclusive).
  [[nodiscard]] std::int64_t steps_within(Picoseconds limit, std::int64_t most, bool inclusive) const {
    const auto fits = [&](std::int64_t n) { return inclusive ? steps_time(n) <= limit : steps_time(n) < limit; };
    if (most <= 0 || !fits(0)) return 0;
    if (fits(most)) return most;
    if (!each.empty()) {
      std::int64_t n = 0;
      while (fits(n + 1)) ++n;
      return n;
    }
    // Root of slope n^2 / 2 + first n = limit, then its exact neighbour.
    const double half = slope.real() / 2;
    const double first = (base + gap).real() - half;
    const double bound = limit.real();
    const double root = std::sqrt(std::max(0.0, first * first + 4 * half * bound));
    std::int64_t n = static_cast<std::int64_t>(2 * bound / (first + root));
    n = std::clamp<std::int64_t>(n, 0, most);
    while (n > 0 && !fits(n)) --n;
    while (n < most && fits(n + 1)) ++n;
    return n;
  }

  // The first n iterations were carried out.
  void drop(std::int64_t n) {
    iterations -= n;
    base += n * slope;
    if (!each.empty()) each.erase(each.begin(), each.begin() + n);
  }
};

struct WorkDone {
  StepTotals totals;                       // summed over ranks
  std::uint64_t planned = 0, outputs = 0;  // steps
  Picoseconds last_output;
};

// Fast-forward of a rank that does not step with others: a stretch of uniform decode steps is priced and carried out at once, with results
// equal to the last digit. Any event that reads or changes the rank cuts a stretch short.
class FastForward {
 public:
  FastForward(ReplicaState& state, Scheduler& scheduler, Device& device, StepRing& steps, WorkDone& done, LogHistogram& itl)
      : state_(state), scheduler_(scheduler), device_(device), steps_(steps), done_(done), itl_(itl) {}

  // With all steps in flight: begins a stretch, if plans only repeat. An event at `until` will cut it.
  void look_ahead(Picoseconds until);
  [[nodiscard]] bool is_on() const { return stretch_.iterations > 0; }
  // Time of the first output after the stretch.
  [[nodiscard]] Picoseconds end() { return iteration_time(stretch_.iterations + 1); }
  // Carries out the iterations before `at` (inclusive: at `at` too).
  void carry_out_before(Picoseconds at, bool inclusive);
  void carry_out_all() {
    if (is_on()) carry_out(stretch_.iterations);
  }
  // Drops the rest of the stretch. False: there was none.
  bool stop() { return std::exchange(stretch_.iterations, 0) > 0; }

 private:
  void carry_out(std::int64_t iterations);
  void advance_memory(std::int64_t iterations, Int128 whole);
  void repeat_memory(std::int64_t iterations);
  void add_gaps(std::int64_t iterations, std::uint64_t counted);
  void move_steps(std::int64_t iterations);
  [[nodiscard]] int depth() const { return steps_.depth(); }
  [[nodiscard]] Picoseconds iteration_time(std::int64_t i);
  [[nodiscard]] StretchGaps stretch_gaps(std::int64_t iterations);
  [[nodiscard]] Picoseconds policy_time(std::int64_t iterations);
  [[nodiscard]] std::int64_t iterations_before(Picoseconds until);
  [[nodiscard]] bool all_uniform();
  [[nodiscard]] bool waits_for_device(const DecodeTimes& times, std::int64_t iterations);

  ReplicaState& state_;
  Scheduler& scheduler_;
  Device& device_;
  StepRing& steps_;
  WorkDone& done_;
  LogHistogram& itl_;
  DecodeStretch stretch_;
};

}  // namespace kvlab
