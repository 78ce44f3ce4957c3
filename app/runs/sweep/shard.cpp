#include "app/runs/sweep/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr long long kMostShards = 100'000;  // maximum runs of a sweep

fs::path folder_of_shards(const fs::path& whole) {
  fs::path plain = whole;
  if (!plain.has_filename()) plain = plain.parent_path();  // "results/NAME/"
  return plain.string() + ".shards";
}

}  // namespace

Shard parse_shard(const std::string& text) {
  const std::size_t slash = text.find('/');
  long long index = 0, count = 0;
  const bool is_pair =
      slash != std::string::npos && parse_integer(text.substr(0, slash), index) && parse_integer(text.substr(slash + 1), count);
  if (!is_pair || count < 1 || count > kMostShards || index < 1 || index > count)
    throw InputError(fmt::format("--shard '{}': write I/N, the part I of N parts, such as 1/4 to 4/4", text));
  return {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(count)};
}

std::vector<std::size_t> places_of_shard(const std::vector<std::string>& run_ids, const Shard& shard) {
  std::map<std::string, std::uint32_t> shard_of;
  for (const std::string& id : run_ids) shard_of.emplace(id, 0);
  std::uint32_t next = 0;
  for (auto& [id, of] : shard_of) of = next++ % shard.count;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < run_ids.size(); ++i)
    if (shard_of.at(run_ids[i]) + 1 == shard.index) places.push_back(i);
  return places;
}

fs::path shard_folder(const fs::path& whole, const Shard& shard) {
  return folder_of_shards(whole) / fmt::format("{}-of-{}", shard.index, shard.count);
}

std::vector<fs::path> shard_folders(const fs::path& whole) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_of_shards(whole), error))
    if (entry.is_directory(error)) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace kvlab
