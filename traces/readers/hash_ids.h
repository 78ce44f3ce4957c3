#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "traces/line_reader.h"
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
  // The next request, with hashes and facts that are valid until clear(); read() reads another session, false at the end.
  template <class Read>
  bool next(TraceRequest& request, Read&& read) {
    while (!pop(request))
      if (!read()) return false;
    return true;
  }

 private:
  bool pop(TraceRequest& request);

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

// Chains `ids`, one per `block` prompt tokens (the last may be partial), since some dialects name single blocks. Throws if their number
// does not fit. The request's hashes point into `ids`.
void set_chained_ids(const InputPlace& lines, std::vector<std::uint64_t>& ids, std::int32_t block, TraceRequest& request);

// Different scopes never match. 0: whole trace.
void chain_ids(std::span<std::uint64_t> ids, std::int32_t block, std::uint64_t scope = 0);

// Throws unless `count` fits the prompt's blocks, the last perhaps partial.
void check_id_count(const InputPlace& lines, std::string_view column, std::size_t count, std::int32_t block, std::int32_t prompt_tokens);

// Throws for more hashes than tokens, or only one of hashes and hash_tokens.
void check_hashes(const InputPlace& lines, const TraceRequest& request);

}  // namespace kvlab
