#include "policies/block_cache/block_cache.h"

#include <fmt/format.h>

#include "bindings/policies/python_policy.h"
#include "policies/block_cache/candidate_heap.h"

namespace kvlab {

namespace {

// The smallest rank(block) at release is evicted first, the earliest released among equals. With victim() the policy tracks candidates
// itself.
class PythonBlockCache final : public BlockCache {
 public:
  PythonBlockCache(const PolicyPtr& policy, const PythonValues& values)
      : python_(policy, values),
        rank_(python_.method("rank")),
        victim_(python_.method("victim")),
        reset_(python_.method("reset")),
        on_insert_(python_.method("on_insert")),
        on_hit_(python_.method("on_hit")),
        on_acquire_(python_.method("on_acquire")),
        on_release_(python_.method("on_release")),
        on_evict_(python_.method("on_evict")) {}

  void reset(std::uint32_t num_blocks) override {
    heap_.reset();
    num_released_ = num_candidates_ = 0;
    is_candidate_.assign(num_blocks, false);
    if (reset_ != nullptr) python_.policy().call([&] { (*reset_)(nb::cast(num_blocks)); });
  }
  void on_insert(BlockId block, std::uint64_t key, std::uint32_t depth, double cost_s) override {
    if (on_insert_ == nullptr) return;
    python_.policy().call([&] { (*on_insert_)(nb::cast(index(block)), nb::cast(key), nb::cast(depth), nb::cast(cost_s)); });
  }
  void on_hit(BlockId block) override { tell(on_hit_, block); }
  void on_acquire(BlockId block) override {
    take(block);
    tell(on_acquire_, block);
  }
  void on_release(BlockId block) override {
    tell(on_release_, block);
    is_candidate_[index(block)] = true;
    ++num_candidates_;
    if (rank_ != nullptr) heap_.push(index(block), {rank_of(block), num_released_++});
  }
  BlockId victim(std::uint64_t incoming) override {
    const BlockId block = rank_ != nullptr ? BlockId{heap_.top()} : chosen(incoming);
    take(block);
    tell(on_evict_, block);
    return block;
  }
  [[nodiscard]] bool weighs_cost() const override { return on_insert_ != nullptr && on_insert_->takes(3); }

 private:
  struct Rank {
    double rank;
    std::uint64_t released;
    auto operator<=>(const Rank&) const = default;
  };

  void tell(const PythonMethod* event, BlockId block) const {
    if (event == nullptr) return;
    python_.policy().call([&] { (*event)(nb::cast(index(block))); });
  }

  [[nodiscard]] double rank_of(BlockId block) const {
    return python_.policy().call([&] { return python_.policy().number("rank()", (*rank_)(nb::cast(index(block)))); });
  }

  [[nodiscard]] BlockId chosen(std::uint64_t incoming) const {
    const std::int64_t block = python_.policy().call([&] { return python_.policy().integer("victim()", (*victim_)(nb::cast(incoming))); });
    const bool is_known = block >= 0 && block < static_cast<std::int64_t>(is_candidate_.size());
    if (!is_known || !is_candidate_[static_cast<std::size_t>(block)])
      python_.policy().fail(fmt::format("victim() returned block {}, which is no candidate: {}; {} candidates exist", block,
                                        is_known ? "it is in use, or holds nothing" : "there is no such block", num_candidates_));
    return BlockId{static_cast<std::uint32_t>(block)};
  }

  void take(BlockId block) {
    is_candidate_[index(block)] = false;
    --num_candidates_;
    if (rank_ != nullptr) heap_.remove(index(block));
  }

  PythonInstance python_;
  const PythonMethod *rank_, *victim_, *reset_, *on_insert_, *on_hit_, *on_acquire_, *on_release_, *on_evict_;  // null: not defined
  CandidateHeap<Rank> heap_;
  std::uint64_t num_released_ = 0, num_candidates_ = 0;
  std::vector<bool> is_candidate_;
};

}  // namespace

void add_block_cache(const PolicyPtr& policy) { add_to_registry<BlockCache, PythonBlockCache>(policy); }

}  // namespace kvlab
