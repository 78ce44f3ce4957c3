#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/tensor_memory.h"
#include "policies/kv/part.h"

namespace kvlab {

// K or V of some tokens of a row in CPU memory, without gaps.
class HostTokens {
 public:
  void resize(std::int32_t tokens) { slot_of_.resize(static_cast<std::size_t>(tokens), -1); }
  [[nodiscard]] bool has(std::int32_t token) const { return token < size() && slot_of_[static_cast<std::size_t>(token)] >= 0; }
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

// A layer's rows of one sequence between decode steps, for a selector with two tiers: V, or K and V, are in the cache's memory for the
// tokens that stay there, without gaps, and in CPU memory for all others. Positions are 0, 1, ...: no token was lost.
class LowerTier {
 public:
  LowerTier() = default;
  LowerTier(Selector::Lower lower, std::int32_t kv_heads);
  [[nodiscard]] bool exists() const { return lower_ != Selector::Lower::kNothing; }

  // Takes the rows. Tensors with two tiers keep only the tokens in `stays` [kv_heads], ascending, in the cache's memory. Returns the bytes
  // that moved to CPU memory.
  std::int64_t take(const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> stays);
  [[nodiscard]] bool is_resting() const { return is_resting_; }
  // Puts the tokens in the cache's memory back into the rows, which have grown by a step's new tokens. `poisons`: K and V of the other old
  // tokens become NaN.
  void raise(const KvRows& rows, bool poisons);
  // Puts those of the listed tokens [kv_heads] that are in CPU memory back into the rows. Returns their bytes.
  std::int64_t fetch(const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> tokens);

  // Moves the part in the cache's memory to another one; it must come back before raise().
  void move_to(const TensorMemory& memory);

  [[nodiscard]] std::int64_t kv_bytes() const { return k_.here.size() + v_.here.size(); }  // in the cache's memory
  [[nodiscard]] std::int64_t beside_bytes() const { return 4 * marks_.size(); }            // positions and statistics
  [[nodiscard]] std::int64_t host_bytes() const;

  // Tokens of each row, ascending, row after row.
  struct Lists {
    std::vector<std::int64_t> first{0};
    std::vector<std::int32_t> token;
    void end_row() { first.push_back(static_cast<std::int64_t>(token.size())); }
  };

 private:
  struct Side {                      // K or V
    std::vector<HostTokens> host;    // [kv_heads], none where all of the side stays
    Lists listed;                    // tokens in `here`
    TensorArray<std::uint8_t> here;  // [listed, head_dim] of the rows' type
  };
  std::uint8_t* vector_in(const Side& side, const KvRows& rows, std::size_t head, std::int32_t token) const;
  static Lists listed_here(const Side& side, const KvRows& rows);
  std::int64_t store(Side& side, const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> stays);
  std::int64_t fetch(Side& side, const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> tokens);

  Selector::Lower lower_ = Selector::Lower::kNothing;
  Side k_, v_;
  std::vector<std::int32_t> len_;     // [kv_heads] of the rows that were taken
  TensorArray<std::uint32_t> marks_;  // of each row [1 + num_words, len]: positions, then statistics
  bool is_resting_ = false;
};

}  // namespace kvlab
