#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/tensor_memory.h"
#include "policies/kv/part.h"

namespace kvlab {

// K or V of some tokens of a row in host memory, without gaps.
class HostTokens {
 public:
  void resize(std::int32_t tokens) { slot_of_.resize(static_cast<std::size_t>(tokens), -1); }
  [[nodiscard]] bool has(std::int32_t token) const { return slot_of_[static_cast<std::size_t>(token)] >= 0; }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(slot_of_.size()); }
  // `vector`: `bytes` of a token that is not here, the same number for all of them.
  void put(std::int32_t token, const std::uint8_t* vector, std::int64_t bytes);
  // Copies a token that is here to `to`, and forgets it.
  void take(std::int32_t token, std::uint8_t* to, std::int64_t bytes);
  [[nodiscard]] std::int64_t bytes() const { return static_cast<std::int64_t>(data_.size()); }

 private:
  std::vector<std::uint8_t> data_;
  std::vector<std::int32_t> token_of_, slot_of_;  // of each slot of data_; of each token of the row, -1: not here
};

// A layer's rows of one sequence between decode steps where a selector has them on two tiers: of K, V or both the last step's tokens lie in
// the cache's memory, one after another, and the others in host memory, each token on one side. Positions are 0, 1, ...: no token was lost.
class LowerTier {
 public:
  LowerTier() = default;
  LowerTier(Selector::Lower lower, std::int32_t kv_heads);
  [[nodiscard]] bool exists() const { return lower_ != Selector::Lower::kNothing; }

  // The rows come to rest. Of what may lie lower tokens in `stays` [kv_heads], ascending, stay in the cache's memory. Answers the bytes
  // that went to the host.
  std::int64_t take(const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> stays);
  [[nodiscard]] bool is_resting() const { return is_resting_; }
  // The rows, grown by a step's new tokens, get back what lies in the cache's memory. With `poisons` all else of K and V becomes NaN.
  void raise(const KvRows& rows, bool poisons);
  // The listed tokens [kv_heads] of such rows come from the host where they are there. Answers their bytes.
  std::int64_t fetch(const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> tokens);

  [[nodiscard]] std::int64_t kv_bytes() const { return k_.here.size() + v_.here.size(); }  // in the cache's memory
  [[nodiscard]] std::int64_t beside_bytes() const { return 4 * marks_.size(); }            // positions and statistics
  [[nodiscard]] std::int64_t host_bytes() const;

 private:
  struct Side {                        // K or V
    std::vector<HostTokens> host;      // [kv_heads], none where all of the side stays
    std::vector<std::int64_t> first;   // [kv_heads + 1]
    std::vector<std::int32_t> listed;  // [first.back()] tokens in `here`, ascending along a row
    TensorArray<std::uint8_t> here;    // [first.back(), head_dim] of the rows' type
  };
  static void list_here(Side& side, const KvRows& rows);
  std::int64_t store(Side& side, const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> stays);
  std::int64_t fetch(Side& side, const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> tokens);
  void copy_marks(const KvRows& rows, bool unpacks);

  Selector::Lower lower_ = Selector::Lower::kNothing;
  Side k_, v_;
  std::vector<std::int64_t> first_;   // [kv_heads + 1] of all tokens at rest
  TensorArray<std::uint32_t> marks_;  // [1 + num_words, first_.back()]
  bool is_resting_ = false;
};

}  // namespace kvlab
