#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "app/runs/experiment.h"

namespace kvlab {

class PreparedRun;

// How many runs each configuration of an experiment has: its seeds.
class SeedCounts {
 public:
  explicit SeedCounts(const Experiment& experiment);
  [[nodiscard]] bool has_several(const RunSpec& run) const { return counts_.at(run.labels) > 1; }
  [[nodiscard]] std::size_t num_configurations() const { return counts_.size(); }

 private:
  std::map<std::vector<std::string>, std::size_t> counts_;
};

// True where the run may differ with another seed.
bool is_random(const PreparedRun& run, std::uint64_t seed);

struct KeptSeeds {
  std::vector<std::size_t> places;  // of the runs that remain, ascending
  std::string remark;               // on those that do not, "" if all remain
};

// Leaves out all seeds but the first of every simulation in which nothing is random: a recorded trace as it is, and no dispatcher that
// draws. With another seed it would be the same run. is_random is asked for the first run of each configuration of several seeds.
// Experiments that run an engine keep every seed, since each of its runs measures time anew: not for them.
KeptSeeds kept_seeds(const Experiment& experiment, const SeedCounts& counts, const std::function<bool(std::size_t place)>& is_random);

// The same where the runs have not been read: reads the first run of each configuration. Returns the remark.
std::string drop_idle_seeds(Experiment& experiment);

}  // namespace kvlab
