#pragma once

#include <cstdint>
#include <vector>

#include "policies/order/keyed_order.h"

namespace kvlab {

// As FastServe (Wu et al. 2023, arXiv:2305.05920; constants from its code). While fewer than max(swap_ahead_blocks, running requests) GPU
// blocks are free, or too few for the head, the last requests leave, waiting ones first; the first ones return while that many stay free.
// While less than `cpu_floor_frac` of the CPU memory is free, preempted requests go first and new ones are held. A swapped request that
// overtakes none is held until that many blocks stay free.
class SwappingOrder : public KeyedOrder {
 public:
  [[nodiscard]] RequestId at(std::uint32_t position) const final;
  void insert(RequestId r, Entry entry) override;
  void erase(RequestId r) override;
  [[nodiscard]] std::optional<Preemption> overtaking() const final { return mode_; }
  // goes_before() may be coarser than rank.
  [[nodiscard]] bool overtakes(RequestId waiting, RequestId running) const final {
    return !holds_new(waiting) && goes_before(waiting, running);
  }
  void on_plan() override;
  Preemption take_off(std::vector<RequestId>& off) final;
  [[nodiscard]] bool holds(RequestId r) final;

 protected:
  explicit SwappingOrder(Params& p);
  [[nodiscard]] virtual bool goes_before(RequestId waiting, RequestId running) const = 0;

 private:
  [[nodiscard]] bool is_on() const { return blocks_ > 0; }
  [[nodiscard]] std::int64_t wanted_blocks() const;
  [[nodiscard]] std::int64_t blocks_soon() const { return view().free_blocks() + view().leaving_blocks(); }
  [[nodiscard]] bool is_started(RequestId r) const { return index(r) < places_.size() && places_[index(r)] != kNowhere; }
  [[nodiscard]] bool holds_new(RequestId r) const { return started_first_ && !is_started(r); }
  [[nodiscard]] bool may_come_back(RequestId r) const;
  [[nodiscard]] std::int64_t blocks_of_head() const;
  void make_room();
  void bring_back();
  void sort_last_first(std::vector<RequestId>& requests) const;

  static constexpr std::uint32_t kNowhere = UINT32_MAX;

  Preemption mode_;
  std::int64_t blocks_;
  std::uint32_t first_;
  double cpu_floor_;
  bool started_first_ = false;
  std::vector<RequestId> started_;     // waiting and preempted, in no order
  std::vector<std::uint32_t> places_;  // by slot
  std::vector<RequestId> due_;
  // Cache of at(), valid while changes() == listed_at_.
  mutable std::vector<RequestId> listed_;
  mutable std::uint64_t listed_at_ = UINT64_MAX;
  mutable std::uint32_t new_position_ = 0, base_position_ = 0;
};

}  // namespace kvlab
