#pragma once

#include <cstdint>
#include <utility>

#include "serving/decode_stretch.h"
#include "serving/device.h"
#include "serving/step_ring.h"
#include "serving/totals.h"

namespace kvlab {

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

  // With all steps in flight: begins a stretch, if plans only repeat.
  void look_ahead();
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
