#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/config/key_map.h"
#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/block_lists.h"

namespace kvlab {

namespace {

// At most max_keys keys of evicted blocks, oldest dropped first. O(1); memory grows with the most keys held.
class GhostList {
 public:
  void reset(std::uint32_t max_keys) {
    max_keys_ = max_keys;
    places_.reset(kFirstKeys);
    keys_.clear();
    order_.reset(kNumLists);
  }

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(places_.size()); }
  [[nodiscard]] bool contains(std::uint64_t key) const { return places_.find(key) != nullptr; }

  void add(std::uint64_t key) {
    if (max_keys_ == 0) return;
    places_.grow_towards(std::size_t{max_keys_} + 1);
    std::uint32_t& place = places_.add(key).value.index;
    const bool is_new = place == Place{}.index, is_full = size() > max_keys_;
    if (is_new) place = is_full ? order_.front(kUsed) : take_place();
    // A second copy of the same content was evicted, or the oldest key makes room: its place becomes the latest.
    if (!is_new || is_full) order_.remove(place);
    order_.push_back(kUsed, place);
    if (!is_new) return;
    const std::uint64_t oldest = std::exchange(keys_[place], key);
    if (is_full) places_.erase(*places_.find(oldest));  // `place` is in the map and may move
  }

  // False if absent.
  bool erase(std::uint64_t key) {
    auto* slot = places_.find(key);
    if (!slot) return false;
    order_.remove(slot->value.index);
    order_.push_back(kFree, slot->value.index);
    places_.erase(*slot);
    return true;
  }

  void drop_oldest() { erase(keys_[order_.front(kUsed)]); }  // not empty

 private:
  struct Place {
    std::uint32_t index = 0xffffffffU;
    bool operator==(const Place&) const = default;
  };
  static constexpr std::uint32_t kUsed = 0, kFree = 1, kNumLists = 2;
  static constexpr std::size_t kFirstKeys = 16;

  std::uint32_t take_place() {
    if (order_.is_empty(kFree)) {
      keys_.push_back(0);
      order_.make_room(static_cast<std::uint32_t>(keys_.size() - 1));
      return static_cast<std::uint32_t>(keys_.size() - 1);
    }
    const std::uint32_t place = order_.front(kFree);
    order_.remove(place);
    return place;
  }

  std::uint32_t max_keys_ = 0;
  KeyMap<Place> places_;
  std::vector<std::uint64_t> keys_;
  BlockLists order_;
};

// Ghosts B1 and B2 hold keys evicted from T1 (seen once) and T2. Referenced blocks count in T1 or T2 but are in neither list. Invariants:
// |T1| + |B1| <= C and |T1| + |T2| + |B1| + |B2| <= 2 C.
class Arc final : public BlockCache {
 public:
  explicit Arc(Params&) {}

  void reset(std::uint32_t num_blocks) override {
    num_blocks_ = num_blocks;
    blocks_.reset();
    lists_.reset(kNumLists);
    ghosts_[kT1].reset(num_blocks);
    ghosts_[kT2].reset(2 * num_blocks);
    size_[kT1] = size_[kT2] = 0;
    target_ = 0;
    has_ghost_hit_ = false;
  }

  // The paper trims the ghosts first; the lists are equal.
  void on_insert(BlockId block, std::uint64_t key, std::uint32_t, double) override {
    const bool was_ghost = (has_ghost_hit_ && ghost_hit_ == key) || take_ghost(key);
    has_ghost_hit_ = false;
    const List list = was_ghost ? kT2 : kT1;
    blocks_.inserted(index(block)) = {key, list, false};
    lists_.make_room(index(block));
    ++size_[list];
    while (size_[kT1] + ghosts_[kT1].size() > num_blocks_) ghosts_[kT1].drop_oldest();
    while (size_[kT1] + size_[kT2] + ghosts_[kT1].size() + ghosts_[kT2].size() > 2 * num_blocks_) ghosts_[kT2].drop_oldest();
  }

  void on_hit(BlockId block) override {
    Block& b = blocks_[index(block)];
    --size_[b.list];
    ++size_[kT2];
    b.list = kT2;
    if (!b.is_candidate) return;
    lists_.remove(index(block));
    lists_.push_back(kT2, index(block));
  }
  void on_acquire(BlockId block) override {
    lists_.remove(index(block));
    blocks_[index(block)].is_candidate = false;
  }
  void on_release(BlockId block) override {
    Block& b = blocks_[index(block)];
    b.is_candidate = true;
    lists_.push_back(b.list, index(block));
  }

  // REPLACE; the other list if its choice has no candidate.
  BlockId victim(std::uint64_t incoming) override {
    const bool was_in_b2 = incoming != 0 && ghosts_[kT2].contains(incoming);
    has_ghost_hit_ = incoming != 0 && take_ghost(incoming);
    ghost_hit_ = incoming;
    const double t1 = size_[kT1];
    List list = t1 > target_ || (was_in_b2 && t1 == target_) ? kT1 : kT2;
    if (lists_.is_empty(list)) list = list == kT1 ? kT2 : kT1;
    const std::uint32_t oldest = lists_.front(list);
    lists_.remove(oldest);
    blocks_[oldest].is_candidate = false;
    --size_[list];
    ghosts_[list].add(blocks_[oldest].key);
    return BlockId{oldest};
  }

 private:
  enum List : std::uint32_t { kT1, kT2, kNumLists };
  struct Block {
    std::uint64_t key = 0;
    List list = kT1;
    bool is_candidate = false;
  };

  // True if the key was a ghost; adapts p (Fig. 4, cases II and III).
  bool take_ghost(std::uint64_t key) {
    const double b1 = ghosts_[kT1].size();
    const double b2 = ghosts_[kT2].size();
    if (ghosts_[kT1].erase(key)) {
      target_ = std::min(target_ + std::max(b2 / b1, 1.0), static_cast<double>(num_blocks_));
      return true;
    }
    if (ghosts_[kT2].erase(key)) {
      target_ = std::max(target_ - std::max(b1 / b2, 1.0), 0.0);
      return true;
    }
    return false;
  }

  std::uint32_t num_blocks_ = 0;  // C
  PerBlock<Block> blocks_;
  BlockLists lists_;                    // least recent in front
  std::uint32_t size_[kNumLists] = {};  // |T1|, |T2|
  GhostList ghosts_[kNumLists];         // B1, B2
  double target_ = 0;                   // p
  std::uint64_t ghost_hit_ = 0;         // incoming key if victim() found it as a ghost
  bool has_ghost_hit_ = false;
};

KVLAB_REGISTER(BlockCache, Arc, "arc", "balances recency and frequency by what it regrets to have evicted", "Megiddo and Modha, FAST 2003");

// A victim search takes referenced blocks out; their release puts them back at the oldest end.
class S3Fifo final : public BlockCache {
 public:
  explicit S3Fifo(Params& p)
      : small_frac_(p.optional<double>("small_frac", 0.1, 0.0, 1.0, "share of the blocks that the small queue may hold")),
        ghost_frac_(p.optional<double>("ghost_frac", 0.9, 0.0, 16.0, "keys remembered after eviction, per block of the cache")),
        promote_hits_(p.optional<std::uint32_t>("promote_hits", 2, 1, 1000, "hits in the small queue that lead to the main one")) {}

  void reset(std::uint32_t num_blocks) override {
    const auto small_share = static_cast<std::uint32_t>(small_frac_ * num_blocks);
    main_share_ = num_blocks - std::clamp(small_share, 1U, std::max(num_blocks, 1U));
    blocks_.reset();
    queues_.reset(kNumQueues);
    ghost_.reset(static_cast<std::uint32_t>(ghost_frac_ * num_blocks));
    size_[kSmall] = size_[kMain] = 0;
    incoming_ = 0;
  }

  void on_insert(BlockId block, std::uint64_t key, std::uint32_t, double) override {
    const bool was_ghost = key != 0 && incoming_ == key ? incoming_was_ghost_ : ghost_.erase(key);
    incoming_ = 0;
    const Queue queue = was_ghost ? kMain : kSmall;
    blocks_.inserted(index(block)) = {key, 0, queue, true, false};
    queues_.make_room(index(block));
    queues_.push_back(queue, index(block));
    ++size_[queue];
  }
  void on_hit(BlockId block) override { ++blocks_[index(block)].hits; }
  void on_acquire(BlockId block) override { blocks_[index(block)].is_referenced = true; }
  void on_release(BlockId block) override {
    Block& b = blocks_[index(block)];
    b.is_referenced = false;
    if (b.is_parked) queues_.push_front(b.queue, index(block));
    b.is_parked = false;
  }

  BlockId victim(std::uint64_t incoming) override {
    // The eviction below can push this key out of the ghost list.
    incoming_was_ghost_ = incoming != 0 && ghost_.erase(incoming);
    incoming_ = incoming;
    for (;;) {
      const bool prefers_main = size_[kMain] > main_share_ || size_[kSmall] == 0;
      Queue queue = prefers_main ? kMain : kSmall;
      if (!park_referenced(queue)) queue = queue == kMain ? kSmall : kMain;
      if (!park_referenced(queue)) throw InternalError("block cache 's3fifo': a victim was asked for, and every block is referenced");
      const std::uint32_t oldest = queues_.front(queue);
      const Block& b = blocks_[oldest];
      queues_.remove(oldest);
      --size_[queue];
      if (queue == kMain && b.hits > 0) {
        move_to_main(oldest, std::min(b.hits, 3U) - 1);
      } else if (queue == kSmall && b.hits >= promote_hits_) {
        move_to_main(oldest, 0);
      } else {
        if (queue == kSmall) ghost_.add(b.key);
        return BlockId{oldest};
      }
    }
  }

 private:
  enum Queue : std::uint32_t { kSmall, kMain, kNumQueues };
  struct Block {
    std::uint64_t key = 0;
    std::uint32_t hits = 0;  // since it entered its queue, less those used up in main
    Queue queue = kSmall;
    bool is_referenced = false;
    bool is_parked = false;
  };

  // False: no candidate left.
  bool park_referenced(Queue queue) {
    while (!queues_.is_empty(queue)) {
      const std::uint32_t oldest = queues_.front(queue);
      if (!blocks_[oldest].is_referenced) return true;
      queues_.remove(oldest);
      blocks_[oldest].is_parked = true;
    }
    return false;
  }

  void move_to_main(std::uint32_t block, std::uint32_t hits) {
    queues_.push_back(kMain, block);
    blocks_[block].queue = kMain;
    blocks_[block].hits = hits;
    ++size_[kMain];
  }

  double small_frac_, ghost_frac_;
  std::uint32_t promote_hits_;
  std::uint32_t main_share_ = 0;
  PerBlock<Block> blocks_;
  BlockLists queues_;                    // oldest in front
  std::uint32_t size_[kNumQueues] = {};  // blocks of each, referenced ones included
  GhostList ghost_;                      // keys evicted from the small queue
  std::uint64_t incoming_ = 0;           // the key that room was made for; 0: none
  bool incoming_was_ghost_ = false;      // and is no ghost any more
};

KVLAB_REGISTER(BlockCache, S3Fifo, "s3fifo", "small, main and ghost FIFO queues: blocks used once leave early", "Yang et al., SOSP 2023");

}  // namespace

}  // namespace kvlab
