#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/picoseconds.h"

namespace kvlab {

// KV that another rank holds for a request of this one; or, for a request that is not begun, the first tokens of its prompt in stores.
struct KvOffer {
  std::uint32_t rank = 0;                     // counted over all replicas
  std::uint32_t replica = 0, to_replica = 0;  // of that rank, and of this one
  RequestId slot = kNoRequest;                // of the request there, which holds its memory until the offer is settled
  std::int32_t tokens = 0;
  Picoseconds begun{}, ready{};  // when the prompt was begun and done there
  std::vector<BlockId> blocks;   // of the tokens there, in order
  // ---- of a prompt's first tokens ----
  bool is_prefix = false;           // `blocks` are of the store of `replica`, after the first ones that are in the own store
  std::vector<BlockId> own_blocks;  // of the store of `to_replica`
  // ---- of another rank ----
  std::uint64_t first_plan = 0;  // number of the plan that saw the request first
  bool has_waited = false;       // that plan did not take it: nothing of it came while the prompt was computed
};

// Requests of a rank on their way from or to another one. Those that leave after their first token are exports: they are in no queue and
// hold their memory until released. Those that come in have an offer until their copy has ended or they leave.
class Handover {
 public:
  // ---- requests that leave after their first token ----
  void note_prefill_only(RequestId r, std::int32_t output_limit) { full_limits_[index(r)] = output_limit; }
  [[nodiscard]] bool is_prefill_only(RequestId r) const { return !full_limits_.empty() && full_limits_.contains(index(r)); }
  // Its true output limit. It becomes an export.
  std::int32_t begin_export(RequestId r) {
    const auto found = full_limits_.find(index(r));
    const std::int32_t limit = found->second;
    full_limits_.erase(found);
    exports_.emplace(index(r), false);
    fresh_.push_back(r);
    return limit;
  }
  // Another rank has the request now; this one holds its memory alone.
  void note_taken(RequestId r) { exports_.at(index(r)) = true; }
  void end_export(RequestId r) {
    if (exports_.erase(index(r)) == 0) throw InternalError("the request is no export");
  }
  // The request left without an export: refused.
  void forget(RequestId r) {
    if (!full_limits_.empty()) full_limits_.erase(index(r));
  }
  // By slot; true: note_taken().
  [[nodiscard]] const std::unordered_map<std::uint32_t, bool>& exports() const { return exports_; }
  [[nodiscard]] bool is_taken(RequestId r) const {
    const auto found = exports_.find(index(r));
    return found != exports_.end() && found->second;
  }
  // Exports that nobody has seen yet; the caller clears it.
  std::vector<RequestId>& fresh() { return fresh_; }

  // ---- requests that come in ----
  void add_offer(RequestId r, KvOffer offer) { offers_.emplace(index(r), std::move(offer)); }
  [[nodiscard]] KvOffer* offer(RequestId r) {
    if (offers_.empty()) return nullptr;
    const auto found = offers_.find(index(r));
    return found == offers_.end() ? nullptr : &found->second;
  }
  // Requests whose copy has not ended.
  [[nodiscard]] std::int64_t num_offers() const { return static_cast<std::int64_t>(offers_.size()); }
  // The copy has ended, or is not needed any more.
  void settle(RequestId r) {
    if (offers_.empty()) return;
    const auto found = offers_.find(index(r));
    if (found == offers_.end()) return;
    settled_.push_back(std::move(found->second));
    offers_.erase(found);
  }
  [[nodiscard]] const std::unordered_map<std::uint32_t, KvOffer>& offers() const { return offers_; }  // by slot
  // Offers whose memory may go back; the caller clears it.
  std::vector<KvOffer>& settled() { return settled_; }

  // Nothing waits to be seen by the fleet.
  [[nodiscard]] bool is_quiet() const { return fresh_.empty() && settled_.empty(); }

 private:
  std::unordered_map<std::uint32_t, std::int32_t> full_limits_;  // by slot
  std::unordered_map<std::uint32_t, bool> exports_;
  std::vector<RequestId> fresh_;
  std::unordered_map<std::uint32_t, KvOffer> offers_;  // by slot
  std::vector<KvOffer> settled_;
};

}  // namespace kvlab
