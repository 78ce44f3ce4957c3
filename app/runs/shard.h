#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

// One of `count` parts of a sweep's runs; index from 1.
struct Shard {
  std::uint32_t index = 1, count = 1;
};

// "2/4". InputError on any other text.
Shard parse_shard(const std::string& text);

// Places in `run_ids` of the shard's runs, ascending. Runs are dealt out in the order of their ids, which do not depend on their place in
// the grid, so that no axis coincides with a shard. Equal ids are in one shard.
std::vector<std::size_t> places_of_shard(const std::vector<std::string>& run_ids, const Shard& shard);

// The results folder of a shard, beside that of the whole: results/NAME.shards/2-of-4.
std::filesystem::path shard_folder(const std::filesystem::path& whole, const Shard& shard);
// The shards' folders that are beside it, sorted.
std::vector<std::filesystem::path> shard_folders(const std::filesystem::path& whole);

}  // namespace kvlab
