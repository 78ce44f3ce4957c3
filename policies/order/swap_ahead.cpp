#include "policies/order/swap_ahead.h"

#include <algorithm>

namespace kvlab {

SwapAhead::SwapAhead(Params& p)
    : blocks_(p.optional<std::int64_t>("swap_ahead_blocks", 0, 0, 1 << 30,
                                       "free GPU blocks kept by swapping the last requests out in advance; at least one for each running "
                                       "request; 0: nothing is swapped in advance")),
      first_(p.optional<std::uint32_t>("swap_in_first", 4, 0, 1 << 16,
                                       "waiting requests that may come back before a row is free, with 'swap_ahead_blocks'")),
      cpu_floor_(p.optional<double>("cpu_floor_frac", 0.1, 0, 1,
                                    "free share of the CPU memory below which new prompts are held, with 'swap_ahead_blocks'")) {
  for (const char* key : {"swap_in_first", "cpu_floor_frac"})
    if (!is_on() && p.has(key))
      p.fail_at(key, "'" + std::string(key) + "' means nothing without 'swap_ahead_blocks': give both, or neither");
}

void SwapAhead::remove(RequestId r) {
  if (!is_on()) return;
  const auto at = std::find(preempted_.begin(), preempted_.end(), r);
  if (at == preempted_.end()) return;
  *at = preempted_.back();
  preempted_.pop_back();
}

std::int64_t SwapAhead::target(const ReplicaView& view) const {
  return std::max(blocks_, static_cast<std::int64_t>(view.running().size()));
}

bool SwapAhead::cpu_is_short(const ReplicaView& view) const {
  return is_on() && static_cast<double>(view.free_cpu_blocks()) < cpu_floor_ * static_cast<double>(view.num_cpu_blocks());
}

// In CPU memory, with room for it beside the blocks that stay free; while nothing runs any room will do.
bool SwapAhead::may_come_back(ReplicaView& view, RequestId r) const {
  const std::int64_t kept = view.running().empty() ? 0 : target(view);
  return view.free_blocks() - view.blocks_needed(r, 1) >= kept;
}

void SwapAhead::bring_back(const Order& order, ReplicaView& view) {
  if (preempted_.empty()) return;
  const auto is_in_cpu_memory = [&](RequestId r) {
    const Request& info = view.info(r);
    return info.is_swapped && !info.is_parked && info.in_flight_steps == 0;
  };
  due_.clear();
  if (cpu_is_short(view)) {
    std::copy_if(preempted_.begin(), preempted_.end(), std::back_inserter(due_), is_in_cpu_memory);
    std::sort(due_.begin(), due_.end(), [&](RequestId a, RequestId b) { return order.precedes(a, b); });
  } else {
    for (std::uint32_t i = 0; i < std::min(first_, order.size()); ++i)
      if (is_in_cpu_memory(order.at(i))) due_.push_back(order.at(i));
  }
  for (const RequestId r : due_)
    if (!may_come_back(view, r) || !view.try_swap_in(r, 1)) return;
}

Preemption SwapAhead::take_off(const Order& order, ReplicaView& view, std::vector<RequestId>& off) const {
  if (!is_on() || view.running().empty()) return Preemption::kSwapAhead;
  std::int64_t free = view.free_blocks(), cpu_free = view.free_cpu_blocks();
  for (const RequestId r : preempted_)
    if (view.info(r).is_leaving) free += view.info(r).swapped_blocks;
  const std::int64_t wanted = target(view);
  if (free >= wanted) return Preemption::kSwapAhead;
  std::vector<RequestId> last_first(view.running().begin(), view.running().end());
  std::sort(last_first.begin(), last_first.end(), [&](RequestId a, RequestId b) { return order.precedes(b, a); });
  last_first.pop_back();  // somebody goes on
  for (const RequestId r : last_first) {
    const auto held = static_cast<std::int64_t>(view.info(r).blocks.size());
    if (free >= wanted || held > cpu_free) break;
    if (held == 0 || view.info(r).computed_tokens == 0 || view.needed_tokens(r) == 0) continue;
    off.push_back(r);
    free += held;
    cpu_free -= held;
  }
  return Preemption::kSwapAhead;
}

bool SwapAhead::holds(const Order& order, ReplicaView& view, RequestId r) const {
  if (!is_on()) return false;
  if (!view.info(r).is_swapped) return holds_new(view, r);
  if (view.running().empty() || may_come_back(view, r)) return false;
  return !order.overtakes(r, order.victim(view.running().back()));
}

}  // namespace kvlab
