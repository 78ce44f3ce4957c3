#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "traces/trace.h"

namespace kvlab {

// A session, read as a whole, one request at a time.
class TurnQueue {
 public:
  void clear() {
    requests_.clear();
    hashes_.clear();
    given_ = 0;
  }
  // Copies the request, hashes and facts.
  void push(const TraceRequest& request);
  // False if empty. Hashes and facts are valid until clear().
  bool pop(TraceRequest& request);
  [[nodiscard]] bool is_empty() const { return given_ == requests_.size(); }

 private:
  struct Kept {
    TraceRequest request;
    RequestFacts facts;
    std::size_t hashes_begin = 0, num_hashes = 0;
  };
  std::vector<Kept> requests_;
  std::vector<std::uint64_t> hashes_;
  std::size_t given_ = 0;
};

// Equal pieces in equal places give equal hashes.
class PieceHashes {
 public:
  // Different scopes never match.
  explicit PieceHashes(std::int32_t chunk_tokens, std::uint64_t scope = 0);
  // `tokens` tokens of content `id`.
  void append(std::uint64_t id, std::int32_t tokens);
  [[nodiscard]] const std::vector<std::uint64_t>& hashes() const { return hashes_; }
  [[nodiscard]] std::int32_t chunk_tokens() const { return chunk_tokens_; }

 private:
  std::int32_t chunk_tokens_;
  std::uint64_t chain_;
  std::int32_t filled_ = 0;  // in the current chunk
  std::vector<std::uint64_t> hashes_;
};

}  // namespace kvlab
