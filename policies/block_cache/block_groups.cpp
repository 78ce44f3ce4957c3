#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "policies/block_cache/block_cache.h"

namespace kvlab {
namespace {

// A request grows after its last block, else takes part of the longest free run, `group_blocks` after the preceding request if long enough.
// Hashed blocks are evicted by place, not age.
class BlockGroups final : public BlockCache {
 public:
  explicit BlockGroups(Params& p)
      : group_blocks_(p.optional<std::uint32_t>("group_blocks", 60, 0, 1 << 20,
                                                "blocks that are left for the request before, if the free run is long enough")) {}

  void reset(std::uint32_t num_blocks) override {
    runs_.clear();
    by_length_.clear();
    add(0, num_blocks);
  }
  [[nodiscard]] bool orders_blank_blocks() const override { return true; }
  [[nodiscard]] bool prefers_runs() const override { return true; }
  void on_insert(BlockId, std::uint64_t, std::uint32_t, double) override {}
  [[nodiscard]] bool ignores_insertions() const override { return true; }
  void on_hit(BlockId) override {}
  void on_acquire(BlockId block) override {
    const auto run = std::prev(runs_.upper_bound(index(block)));
    take(run, index(block), 1);
  }
  void on_release(BlockId block) override {
    std::uint32_t begin = index(block), end = begin + 1;
    const auto after = runs_.lower_bound(begin);
    if (after != runs_.begin() && std::prev(after)->second == begin) begin = remove(std::prev(after)).first;
    if (const auto next = runs_.find(end); next != runs_.end()) end = remove(next).second;
    add(begin, end);
  }
  BlockId victim(std::uint64_t) override {
    one_.clear();
    victims_after(kNoBlock, 1, one_);
    return one_.front();
  }
  void victims(std::size_t count, std::vector<BlockId>& blocks) override { victims_after(kNoBlock, count, blocks); }
  void victims_after(BlockId last, std::size_t count, std::vector<BlockId>& blocks) override {
    auto left = static_cast<std::uint32_t>(count);
    if (last != kNoBlock) {
      if (const auto next = runs_.find(index(last) + 1); next != runs_.end()) left -= give(next, next->first, left, blocks);
    }
    while (left > 0) {
      const auto longest = runs_.find(by_length_.rbegin()->second);
      const std::uint32_t length = longest->second - longest->first;
      const std::uint32_t spare = longest->first > 0 && length > left ? std::min(group_blocks_, length - left) : 0;
      left -= give(longest, longest->first + spare, left, blocks);
    }
  }

 private:
  using Runs = std::map<std::uint32_t, std::uint32_t>;  // begin -> end; none touch

  void add(std::uint32_t begin, std::uint32_t end) {
    if (begin == end) return;
    runs_.emplace(begin, end);
    by_length_.emplace(end - begin, begin);
  }
  std::pair<std::uint32_t, std::uint32_t> remove(Runs::iterator run) {
    const std::pair<std::uint32_t, std::uint32_t> range = *run;
    by_length_.erase({range.second - range.first, range.first});
    runs_.erase(run);
    return range;
  }
  void take(Runs::iterator run, std::uint32_t from, std::uint32_t count) {
    const auto [begin, end] = remove(run);
    add(begin, from);
    add(from + count, end);
  }
  // Returns their number.
  std::uint32_t give(Runs::iterator run, std::uint32_t from, std::uint32_t most, std::vector<BlockId>& blocks) {
    const std::uint32_t count = std::min(most, run->second - from);
    take(run, from, count);
    for (std::uint32_t i = 0; i < count; ++i) blocks.push_back(BlockId{from + i});
    return count;
  }

  std::uint32_t group_blocks_;
  Runs runs_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> by_length_;  // length and begin
  std::vector<BlockId> one_;
};

KVLAB_REGISTER(BlockCache, BlockGroups, "block_groups", "runs of neighbouring blocks, so that swaps take few copies",
               "Shen et al. 2024, arXiv:2411.18424 (FastSwitch)");

}  // namespace
}  // namespace kvlab
