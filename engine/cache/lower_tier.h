#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/tensor_memory.h"
#include "policies/kv/selector/selector.h"

namespace kvlab {

// K or V, dense.
class HostTokens {
 public:
  void resize(std::int32_t tokens) { slot_of_.resize(static_cast<std::size_t>(tokens), -1); }
  [[nodiscard]] bool has(std::int32_t token) const { return token < size() && slot_of_[static_cast<std::size_t>(token)] >= 0; }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(slot_of_.size()); }
  // `vector`: a new token's `bytes`, equal for all.
  void put(std::int32_t token, const std::uint8_t* vector, std::int64_t bytes);
  void take(std::int32_t token, std::uint8_t* to, std::int64_t bytes);
  [[nodiscard]] std::int64_t bytes() const { return static_cast<std::int64_t>(data_.size()); }

 private:
  std::vector<std::uint8_t> data_;
  std::vector<std::int32_t> token_of_, slot_of_;  // -1: not stored
};

// A layer's rows between decode steps under a two-tier selector: V, or K and V, dense, in the cache's or in CPU memory. No token was lost:
// positions are 0, 1, ...
class LowerTier {
 public:
  LowerTier() = default;
  LowerTier(Selector::Lower lower, std::int32_t kv_heads);
  [[nodiscard]] bool exists() const { return lower_ != Selector::Lower::kNothing; }

  // Moves all but `stays` [kv_heads, ascending] to CPU memory. Returns the bytes.
  std::int64_t take(const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> stays);
  [[nodiscard]] bool is_resting() const { return is_resting_; }
  // Fills the rows, grown by new tokens. `poisons`: old K and V in CPU memory become NaN.
  void raise(const KvRows& rows, bool poisons);
  // Restores `tokens` [kv_heads]. Returns the bytes.
  std::int64_t fetch(const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> tokens);

  // Must be moved back before raise().
  void move_to(const TensorMemory& memory);

  [[nodiscard]] std::int64_t kv_bytes() const { return k_.here.size() + v_.here.size(); }  // in the cache's memory
  [[nodiscard]] std::int64_t beside_bytes() const { return 4 * marks_.size(); }            // positions and statistics
  [[nodiscard]] std::int64_t host_bytes() const;

  // Ascending tokens, row after row.
  struct Lists {
    std::vector<std::int64_t> first{0};
    std::vector<std::int32_t> token;
    void end_row() { first.push_back(static_cast<std::int64_t>(token.size())); }
  };

 private:
  struct Side {                    // K or V
    std::vector<HostTokens> host;  // [kv_heads]; empty: all of this side stays
    Lists listed;
    TensorArray<std::uint8_t> here;  // [listed, head_dim] of the rows' type
  };
  std::uint8_t* vector_in(const Side& side, const KvRows& rows, std::size_t head, std::int32_t token) const;
  static Lists listed_here(const Side& side, const KvRows& rows);
  std::int64_t store(Side& side, const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> stays);
  std::int64_t fetch(Side& side, const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> tokens);

  Selector::Lower lower_ = Selector::Lower::kNothing;
  Side k_, v_;
  std::vector<std::int32_t> len_;     // [kv_heads]
  TensorArray<std::uint32_t> marks_;  // each row [1 + num_words, len]: positions, then statistics
  bool is_resting_ = false;
};

}  // namespace kvlab
