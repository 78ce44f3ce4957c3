#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/picoseconds.h"
#include "serving/node_store.h"

namespace kvlab {

// KV on another rank for a request of this one, or prefix blocks in stores before a request begins.
struct KvOffer {
  std::uint32_t rank = 0;                     // over all replicas
  std::uint32_t replica = 0, to_replica = 0;  // of that rank, and of this one
  RequestId slot = kNoRequest;                // of the request there; holds its memory until the offer is settled
  std::int32_t tokens = 0;
  Picoseconds begun{}, ready{};    // times of the prompt there
  std::vector<BlockId> blocks;     // there, in token order
  std::vector<std::int32_t> rows;  // see Footprint::rows_of
  // ---- of a prefix ----
  bool is_prefix = false;           // `blocks` follow own_blocks and are in the store of `replica`
  std::vector<BlockId> own_blocks;  // in the store of `to_replica`
  // ---- of another rank ----
  std::uint64_t first_plan = 0;  // first plan that saw the request
  bool has_waited = false;       // that plan did not take it: no KV came while the prompt was computed
};

// Asked for a prompt's first tokens when the scheduler takes its request.
struct PromptStores {
  std::uint32_t replica = 0;   // of the request's rank; its store is asked first
  NodeStore* other = nullptr;  // named by the dispatcher; null: none
  std::uint32_t other_replica = 0, other_rank = 0;
  std::int32_t expected_tokens = 0;  // estimate at arrival
};

// Leaves after its first token, comes from another rank, or takes its first tokens from stores; several may hold at once.
struct Transit {
  enum class Export : std::uint8_t { kNone, kHeld, kTaken };
  std::int32_t full_limit = 0;           // above 0: true output limit; leaves after its first token
  Export export_state = Export::kNone;   // kHeld: in no queue, with its memory, until another rank has it (kTaken) and the KV is copied
  std::optional<KvOffer> offer{};        // until the copy has ended or the request leaves
  std::optional<PromptStores> stores{};  // until it leaves
  [[nodiscard]] bool is_over() const { return full_limit == 0 && export_state == Export::kNone && !offer && !stores; }
};

// By slot.
class Transits {
 public:
  // Null: not in transit.
  [[nodiscard]] const Transit* of(RequestId r) const {
    if (all_.empty()) return nullptr;
    const auto found = all_.find(index(r));
    return found == all_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] Transit* of(RequestId r) { return const_cast<Transit*>(static_cast<const Transits*>(this)->of(r)); }
  [[nodiscard]] const std::unordered_map<std::uint32_t, Transit>& all() const { return all_; }

  // ---- exports ----
  void note_prefill_only(RequestId r, std::int32_t output_limit) { all_[index(r)].full_limit = output_limit; }
  [[nodiscard]] bool is_prefill_only(RequestId r) const {
    const Transit* const transit = of(r);
    return transit != nullptr && transit->full_limit > 0;
  }
  // Returns the true output limit.
  std::int32_t begin_export(RequestId r) {
    Transit& transit = all_.at(index(r));
    transit.export_state = Transit::Export::kHeld;
    fresh_.push_back(r);
    return std::exchange(transit.full_limit, 0);
  }
  // Only the memory is here.
  void note_taken(RequestId r) { all_.at(index(r)).export_state = Transit::Export::kTaken; }
  [[nodiscard]] bool is_taken(RequestId r) const {
    const Transit* const transit = of(r);
    return transit != nullptr && transit->export_state == Transit::Export::kTaken;
  }
  void end_export(RequestId r) {
    Transit* const transit = of(r);
    if (transit == nullptr || transit->export_state == Transit::Export::kNone) throw InternalError("the request is no export");
    transit->export_state = Transit::Export::kNone;
    end_if_over(r, *transit);
  }
  // New exports; the caller clears the list.
  std::vector<RequestId>& fresh() { return fresh_; }

  // ---- imports ----
  void add_offer(RequestId r, KvOffer offer) {
    all_[index(r)].offer = std::move(offer);
    ++num_offers_;
  }
  [[nodiscard]] KvOffer* offer(RequestId r) {
    Transit* const transit = of(r);
    return transit != nullptr && transit->offer ? &*transit->offer : nullptr;
  }
  [[nodiscard]] std::int64_t num_offers() const { return num_offers_; }
  // The copy has ended or is not needed.
  void settle(RequestId r) {
    Transit* const transit = of(r);
    if (transit == nullptr || !transit->offer) return;
    settled_.push_back(std::move(*transit->offer));
    transit->offer.reset();
    --num_offers_;
    end_if_over(r, *transit);
  }
  // Offers with memory to free; the caller clears the list.
  std::vector<KvOffer>& settled() { return settled_; }

  // ---- stores ----
  void add_stores(RequestId r, const PromptStores& stores) {
    all_[index(r)].stores = stores;
    expected_tokens_ += stores.expected_tokens;
  }
  [[nodiscard]] const PromptStores* stores(RequestId r) const {
    const Transit* const transit = of(r);
    return transit != nullptr && transit->stores ? &*transit->stores : nullptr;
  }
  // The request was taken: its computed tokens are known.
  void end_expectation(RequestId r) {
    if (Transit* const transit = of(r); transit != nullptr && transit->stores)
      expected_tokens_ -= std::exchange(transit->stores->expected_tokens, 0);
  }
  void forget_stores(RequestId r) {
    end_expectation(r);
    if (Transit* const transit = of(r); transit != nullptr) {
      transit->stores.reset();
      end_if_over(r, *transit);
    }
  }
  // Tokens from stores, over all requests that were not taken.
  [[nodiscard]] std::int64_t expected_tokens() const { return expected_tokens_; }

  // The request leaves. Its offer is settled.
  void end(RequestId r) {
    settle(r);
    forget_stores(r);
    if (!all_.empty()) all_.erase(index(r));
  }
  [[nodiscard]] bool is_quiet() const { return fresh_.empty() && settled_.empty(); }

 private:
  void end_if_over(RequestId r, const Transit& transit) {
    if (transit.is_over()) all_.erase(index(r));
  }

  std::unordered_map<std::uint32_t, Transit> all_;
  std::vector<RequestId> fresh_;
  std::vector<KvOffer> settled_;
  std::int64_t num_offers_ = 0, expected_tokens_ = 0;
};

}  // namespace kvlab
