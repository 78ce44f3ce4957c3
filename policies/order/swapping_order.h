#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "policies/order/keyed_order.h"
#include "policies/order/make_way.h"

namespace kvlab {

// As FastServe (Wu et al. 2023, arXiv:2305.05920; constants from its code). While fewer than max(swap_ahead_blocks, running requests) GPU
// blocks are free, or too few for the head, the last requests leave, waiting ones first; the first ones return while that many stay free.
// While less than `cpu_floor_frac` of the CPU memory is free, preempted requests go first and new ones are held. A swapped request that
// overtakes none is held until that many blocks stay free.
class SwappingOrder : public KeyedOrder {
 public:
  [[nodiscard]] RequestId at(std::uint32_t position) const final {
    if (!started_first_) return KeyedOrder::at(position);
    if (listed_at_ != changes()) {
      listed_ = started_;
      std::sort(listed_.begin(), listed_.end(), [&](RequestId a, RequestId b) { return precedes(a, b); });
      new_position_ = base_position_ = 0;
      listed_at_ = changes();
    }
    if (position < listed_.size()) return listed_[position];
    position -= static_cast<std::uint32_t>(listed_.size());
    if (position < new_position_) new_position_ = base_position_ = 0;
    for (;; ++base_position_) {
      const RequestId r = KeyedOrder::at(base_position_);
      if (is_started(r)) continue;
      if (new_position_ == position) return r;
      ++new_position_;
    }
  }

  void insert(RequestId r, Entry entry) override {
    if (is_on() && entry != Entry::kArrival) {
      if (places_.size() <= index(r)) places_.resize(index(r) + 1, kNowhere);
      places_[index(r)] = static_cast<std::uint32_t>(started_.size());
      started_.push_back(r);
    }
    KeyedOrder::insert(r, entry);
  }

  void erase(RequestId r) override {
    KeyedOrder::erase(r);
    if (!is_started(r)) return;
    const std::uint32_t place = places_[index(r)];
    places_[index(started_.back())] = place;
    started_[place] = started_.back();
    started_.pop_back();
    places_[index(r)] = kNowhere;
  }

  [[nodiscard]] std::optional<Preemption> overtaking() const final { return mode_; }
  // goes_before() may be coarser than rank.
  [[nodiscard]] bool overtakes(RequestId waiting, RequestId running) const final {
    return !holds_new(waiting) && goes_before(waiting, running);
  }

  void on_plan() override {
    if (!is_on()) return;
    started_first_ = static_cast<double>(view().free_cpu_blocks()) < cpu_floor_ * static_cast<double>(view().num_cpu_blocks());
    if (started_.empty()) return;
    make_room();
    bring_back();
  }

  Preemption take_off(std::vector<RequestId>& off) final {
    if (!is_on() || view().running().empty()) return Preemption::kSwapAhead;
    std::int64_t soon = blocks_soon(), cpu_free = view().free_cpu_blocks();
    const std::int64_t wanted = wanted_blocks();
    if (soon >= wanted) return Preemption::kSwapAhead;
    due_.assign(view().running().begin(), view().running().end());
    sort_last_first(due_);
    due_.pop_back();
    for (const RequestId r : due_) {
      const auto held = static_cast<std::int64_t>(info(r).blocks.size());
      if (soon >= wanted || held > cpu_free) break;
      if (held == 0 || info(r).computed_tokens == 0 || view().needed_tokens(r) == 0) continue;
      off.push_back(r);
      soon += held;
      cpu_free -= held;
    }
    return Preemption::kSwapAhead;
  }

  [[nodiscard]] bool holds(RequestId r) final {
    if (!is_on()) return false;
    if (!info(r).is_swapped) return holds_new(r);
    if (view().running().empty() || may_come_back(r)) return false;
    return !overtakes(r, victim(view().running().back()));
  }

 protected:
  explicit SwappingOrder(Params& p)
      : mode_(p.choice("preemption", {{"recompute", Preemption::kRecompute}, {"swap", Preemption::kSwap}, {"keep", Preemption::kKeep}},
                       Preemption::kSwap,
                       "what becomes of the KV of a request that is overtaken; keep: it stays on the GPU while there is room, with "
                       "'swap_ahead_blocks'")),
        blocks_(p.optional<std::int64_t>("swap_ahead_blocks", 0, 0, 1 << 30,
                                         "free GPU blocks kept by swapping the last requests out in advance; at least one for each running "
                                         "request; 0: nothing is swapped in advance")),
        first_(p.optional<std::uint32_t>("swap_in_first", 4, 0, 1 << 16,
                                         "waiting requests that may come back before a row is free, with 'swap_ahead_blocks'")),
        cpu_floor_(p.optional<double>("cpu_floor_frac", 0.1, 0, 1,
                                      "free share of the CPU memory below which new prompts are held, with 'swap_ahead_blocks'")) {
    for (const char* key : {"swap_in_first", "cpu_floor_frac"})
      if (!is_on() && p.has(key))
        p.fail_at(key, "'" + std::string(key) + "' means nothing without 'swap_ahead_blocks': give both, or neither");
    if (!is_on() && mode_ == Preemption::kKeep)
      p.fail_at("preemption", "'preemption: keep' needs 'swap_ahead_blocks', which frees the memory of those that wait");
  }

  [[nodiscard]] virtual bool goes_before(RequestId waiting, RequestId running) const = 0;

 private:
  [[nodiscard]] bool is_on() const { return blocks_ > 0; }
  [[nodiscard]] std::int64_t wanted_blocks() const { return std::max(blocks_, static_cast<std::int64_t>(view().running().size())); }
  [[nodiscard]] std::int64_t blocks_soon() const { return view().free_blocks() + view().leaving_blocks(); }
  [[nodiscard]] bool is_started(RequestId r) const { return index(r) < places_.size() && places_[index(r)] != kNowhere; }
  [[nodiscard]] bool holds_new(RequestId r) const { return started_first_ && !is_started(r); }

  // Any room will do while none runs.
  [[nodiscard]] bool may_come_back(RequestId r) const {
    const std::int64_t kept = view().running().empty() ? 0 : wanted_blocks();
    return view().free_blocks() - view().blocks_needed(r, tokens_to_admit(view(), r)) >= kept;
  }

  // 0 if the head cannot enter in this plan.
  [[nodiscard]] std::int64_t blocks_of_head() const {
    const RequestId head = at(0);
    const Request& request = info(head);
    if (request.is_parked || request.in_flight_steps > 0 || holds_new(head)) return 0;
    return view().blocks_needed(head, tokens_to_admit(view(), head));
  }

  // While none runs, the first may also need a watermark of up to half the memory.
  void make_room() {
    const bool is_idle = view().running().empty();
    const std::int64_t wanted = std::max(wanted_blocks(), blocks_of_head() + (is_idle ? view().num_blocks() / 2 : 0));
    if (blocks_soon() >= wanted) return;
    const RequestId stays = is_idle ? at(0) : kNoRequest;
    due_.clear();
    std::copy_if(started_.begin(), started_.end(), std::back_inserter(due_),
                 [&](RequestId r) { return r != stays && info(r).is_paused && info(r).in_flight_steps == 0; });
    sort_last_first(due_);
    for (const RequestId r : due_) {
      if (blocks_soon() >= wanted) return;
      const bool has_place = static_cast<std::int64_t>(info(r).blocks.size()) <= view().free_cpu_blocks();
      view().put_away(r, has_place ? Preemption::kSwapAhead : Preemption::kRecompute);
    }
  }

  void bring_back() {
    due_.clear();
    const std::uint32_t end = std::min(size(), started_first_ ? static_cast<std::uint32_t>(started_.size()) : first_);
    for (std::uint32_t i = 0; i < end; ++i) {
      const Request& request = info(at(i));
      if (request.is_swapped && !request.is_parked && request.in_flight_steps == 0) due_.push_back(at(i));
    }
    for (const RequestId r : due_)
      if (!may_come_back(r) || !view().try_swap_in(r, tokens_to_admit(view(), r))) return;
  }

  void sort_last_first(std::vector<RequestId>& requests) const {
    std::sort(requests.begin(), requests.end(), [&](RequestId a, RequestId b) { return precedes(b, a); });
  }

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
