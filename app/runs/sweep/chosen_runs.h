#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "app/runs/sweep/experiment.h"

namespace kvlab {

class PreparedRun;

class SeedCounts {
 public:
  explicit SeedCounts(const Experiment& experiment);
  [[nodiscard]] bool has_several(const RunSpec& run) const { return counts_.at(run.labels) > 1; }
  [[nodiscard]] std::size_t num_configurations() const { return counts_.size(); }

 private:
  std::map<std::vector<std::string>, std::size_t> counts_;
};

// Another seed may change the run.
bool is_random(const PreparedRun& run, std::uint64_t seed);

struct KeptSeeds {
  std::vector<std::size_t> places;  // of remaining runs, ascending
  std::string remark;               // on dropped runs, or ""
};

// Keeps only the first seed of simulations without randomness (is_random of a configuration's first run). Not for engine runs.
KeptSeeds kept_seeds(const Experiment& experiment, const SeedCounts& counts, const std::function<bool(std::size_t place)>& is_random);

std::string drop_idle_seeds(Experiment& experiment);

// index: from 1.
struct Shard {
  std::uint32_t index = 1, count = 1;
};

// "2/4". Throws InputError.
Shard parse_shard(const std::string& text);

// Ascending. Deals runs by id order, which is unrelated to the grid. Equal ids share a shard.
std::vector<std::size_t> places_of_shard(const std::vector<std::string>& run_ids, const Shard& shard);

// results/NAME.shards/2-of-4.
std::filesystem::path shard_folder(const std::filesystem::path& whole, const Shard& shard);
// Existing ones, sorted.
std::vector<std::filesystem::path> shard_folders(const std::filesystem::path& whole);

}  // namespace kvlab
