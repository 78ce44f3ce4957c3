#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

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
