#include "policies/order/swapping_order.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "policies/order/make_way.h"

namespace kvlab {

SwappingOrder::SwappingOrder(Params& p)
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

void SwappingOrder::insert(RequestId r, Entry entry) {
  if (is_on() && entry != Entry::kArrival) {
    if (places_.size() <= index(r)) places_.resize(index(r) + 1, kNowhere);
    places_[index(r)] = static_cast<std::uint32_t>(started_.size());
    started_.push_back(r);
  }
  KeyedOrder::insert(r, entry);
}

void SwappingOrder::erase(RequestId r) {
  KeyedOrder::erase(r);
  if (!is_started(r)) return;
  const std::uint32_t place = places_[index(r)];
  places_[index(started_.back())] = place;
  started_[place] = started_.back();
  started_.pop_back();
  places_[index(r)] = kNowhere;
}

RequestId SwappingOrder::at(std::uint32_t position) const {
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

std::int64_t SwappingOrder::wanted_blocks() const { return std::max(blocks_, static_cast<std::int64_t>(view().running().size())); }

void SwappingOrder::on_plan() {
  if (!is_on()) return;
  started_first_ = static_cast<double>(view().free_cpu_blocks()) < cpu_floor_ * static_cast<double>(view().num_cpu_blocks());
  if (started_.empty()) return;
  make_room();
  bring_back();
}

// 0 if the head cannot enter in this plan.
std::int64_t SwappingOrder::blocks_of_head() const {
  const RequestId head = at(0);
  const Request& request = info(head);
  if (request.is_parked || request.in_flight_steps > 0 || holds_new(head)) return 0;
  return view().blocks_needed(head, tokens_to_admit(view(), head));
}

void SwappingOrder::sort_last_first(std::vector<RequestId>& requests) const {
  std::sort(requests.begin(), requests.end(), [&](RequestId a, RequestId b) { return precedes(b, a); });
}

// While none runs, the first may also need a watermark of up to half the memory.
void SwappingOrder::make_room() {
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

// Any room will do while none runs.
bool SwappingOrder::may_come_back(RequestId r) const {
  const std::int64_t kept = view().running().empty() ? 0 : wanted_blocks();
  return view().free_blocks() - view().blocks_needed(r, tokens_to_admit(view(), r)) >= kept;
}

void SwappingOrder::bring_back() {
  due_.clear();
  const std::uint32_t end = std::min(size(), started_first_ ? static_cast<std::uint32_t>(started_.size()) : first_);
  for (std::uint32_t i = 0; i < end; ++i) {
    const Request& request = info(at(i));
    if (request.is_swapped && !request.is_parked && request.in_flight_steps == 0) due_.push_back(at(i));
  }
  for (const RequestId r : due_)
    if (!may_come_back(r) || !view().try_swap_in(r, tokens_to_admit(view(), r))) return;
}

Preemption SwappingOrder::take_off(std::vector<RequestId>& off) {
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

bool SwappingOrder::holds(RequestId r) {
  if (!is_on()) return false;
  if (!info(r).is_swapped) return holds_new(r);
  if (view().running().empty() || may_come_back(r)) return false;
  return !overtakes(r, victim(view().running().back()));
}

}  // namespace kvlab
