#include "traces/readers/turn_queue.h"

#include <algorithm>

#include "base/hash.h"

namespace kvlab {

void TurnQueue::push(const TraceRequest& request) {
  Kept kept;
  kept.request = request;
  if (request.facts != nullptr) kept.facts = *request.facts;
  kept.hashes_begin = hashes_.size();
  kept.num_hashes = request.hashes.size();
  hashes_.insert(hashes_.end(), request.hashes.begin(), request.hashes.end());
  requests_.push_back(kept);
}

bool TurnQueue::pop(TraceRequest& request) {
  if (is_empty()) return false;
  const Kept& kept = requests_[given_++];
  request = kept.request;
  request.hashes = std::span(hashes_).subspan(kept.hashes_begin, kept.num_hashes);
  if (request.facts != nullptr) request.facts = &kept.facts;
  return true;
}

PieceHashes::PieceHashes(std::int32_t chunk_tokens, std::uint64_t scope)
    : chunk_tokens_(chunk_tokens), chain_(hash_combine(mix64(static_cast<std::uint64_t>(chunk_tokens)), scope)) {}

void PieceHashes::append(std::uint64_t id, std::int32_t tokens) {
  for (std::int32_t from = 0; from < tokens;) {
    const std::int32_t taken = std::min(tokens - from, chunk_tokens_ - filled_);
    const bool is_whole = from == 0 && taken == tokens;
    chain_ = hash_combine(chain_, id);
    if (!is_whole) chain_ = hash_combine(chain_, static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint64_t>(taken));
    from += taken;
    filled_ += taken;
    if (filled_ < chunk_tokens_) continue;
    hashes_.push_back(chain_);
    filled_ = 0;
  }
}

}  // namespace kvlab
