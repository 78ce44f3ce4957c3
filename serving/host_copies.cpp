#include "serving/host_copies.h"

#include <algorithm>
#include <utility>

namespace kvlab {

void HostCopies::add(Copy copy) {
  blocks_ += copy.blocks;
  const Place at = copies_.insert(copies_.end(), std::move(copy));
  if (at->request != kNoRequest)
    by_request_[index(at->request)] = at;
  else
    by_session_[at->session] = at;
}

HostCopies::Copy HostCopies::take_out(Place at) {
  if (at->request != kNoRequest)
    by_request_.erase(index(at->request));
  else
    by_session_.erase(at->session);
  blocks_ -= at->blocks;
  Copy copy = std::move(*at);
  copies_.erase(at);
  return copy;
}

std::optional<HostCopies::Copy> HostCopies::take(RequestId r) {
  const auto found = by_request_.find(index(r));
  if (found == by_request_.end()) return std::nullopt;
  return take_out(found->second);
}

std::optional<HostCopies::Copy> HostCopies::take_turn(std::int64_t session, std::span<const std::uint64_t> keys) {
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return std::nullopt;
  Copy copy = take_out(found->second);
  const auto differs = std::mismatch(copy.keys.begin(), copy.keys.end(), keys.begin(), keys.end()).first;
  copy.full = std::distance(copy.keys.begin(), differs);
  return copy;
}

std::int64_t HostCopies::keep_turn(RequestId r, std::int64_t session, std::span<const std::uint64_t> keys) {
  const std::optional<Copy> copy = take(r);
  if (!copy) return 0;
  std::int64_t freed = copy->blocks;
  const std::int64_t kept = std::min<std::int64_t>(copy->full, std::ssize(keys));
  if (kept == 0) return freed;
  if (const auto before = by_session_.find(session); before != by_session_.end()) freed += take_out(before->second).blocks;
  const auto its = keys.first(static_cast<std::size_t>(kept));
  add({kNoRequest, session, kept, kept, {its.begin(), its.end()}});
  return freed - kept;
}

std::int64_t HostCopies::give_up_oldest() { return copies_.empty() ? 0 : take_out(copies_.begin()).blocks; }

}  // namespace kvlab
