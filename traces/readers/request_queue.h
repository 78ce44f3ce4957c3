#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "traces/trace.h"

namespace kvlab {

// The requests of a session that a reader has read as a whole and gives out one by one.
class RequestQueue {
 public:
  void clear() {
    requests_.clear();
    hashes_.clear();
    given_ = 0;
  }
  // Keeps a copy of the request, its hashes and its facts.
  void push(const TraceRequest& request);
  // False where all were given. The request's hashes and facts are valid until clear().
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

// Hashes of the full chunks of a growing text, known by the pieces that it was made of: equal pieces in equal places, equal hashes.
class PieceHashes {
 public:
  // `scope`: texts of different scopes never meet.
  explicit PieceHashes(std::int32_t chunk_tokens, std::uint64_t scope = 0);
  // Goes on with `tokens` tokens of the content `id`.
  void append(std::uint64_t id, std::int32_t tokens);
  [[nodiscard]] const std::vector<std::uint64_t>& hashes() const { return hashes_; }
  [[nodiscard]] std::int32_t chunk_tokens() const { return chunk_tokens_; }

 private:
  std::int32_t chunk_tokens_;
  std::uint64_t chain_;
  std::int32_t filled_ = 0;  // tokens of the chunk in progress
  std::vector<std::uint64_t> hashes_;
};

}  // namespace kvlab
