#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

// Codes, uncoded vectors, positions and statistics between steps, bit for bit.
class PackedRows {
 public:
  PackedRows(std::int32_t kv_heads, const TensorMemory& memory)
      : memory_(memory), sides_{Side(memory), Side(memory)}, len_(static_cast<std::size_t>(kv_heads), 0), words_(memory) {}

  // `tokens`: the operation's, indices in CPU memory.
  void keep(const DecodeOp& op, const ListedTokens& tokens, std::int32_t first_row, std::int32_t new_tokens);
  // After the step. Drops rows that lost encoded tokens.
  void settle(const KvRows& kv, std::int32_t first_row, std::int32_t new_tokens);
  // Something is encoded, and nothing of it lost.
  [[nodiscard]] bool can_rest() const { return !sides_[0].codes.empty() || !sides_[1].codes.empty(); }

  void take(const KvRows& kv, std::int32_t first_row);
  [[nodiscard]] bool is_resting() const { return is_resting_; }
  // Must be moved back before fill().
  void move_to(const TensorMemory& memory);
  // Rows [begin, begin + count); `first_row`: the sequence's.
  void fill(const KvRows& kv, std::int32_t first_row, std::int32_t begin, std::int32_t count) const;

  [[nodiscard]] std::int64_t kv_bytes() const;
  [[nodiscard]] std::int64_t beside_bytes() const { return words_.bytes(); }  // positions and statistics
  [[nodiscard]] std::vector<std::int32_t> positions(std::int32_t head) const;

 private:
  struct Side {  // K or V
    explicit Side(const TensorMemory& memory) : dense(memory) {}
    void keep(std::unique_ptr<StoredCode> code);
    std::vector<std::unique_ptr<StoredCode>> codes;
    std::vector<RowList> dense_lists;  // [kv_heads] tokens without a code
    RowNumbers<std::uint8_t> dense;    // of each row [tokens, head_dim] of the pages' type
  };
  [[nodiscard]] std::int32_t kv_heads() const { return static_cast<std::int32_t>(len_.size()); }
  [[nodiscard]] bool has_codes(std::size_t head) const;
  void note_lengths(const KvRows& kv, std::int32_t first_row, std::int32_t new_tokens);
  void take_side(std::size_t side, const KvRows& own);

  TensorMemory memory_;
  std::array<Side, 2> sides_;
  std::vector<std::int32_t> len_;    // [kv_heads]
  RowNumbers<std::uint32_t> words_;  // of each row [1 + num_words, len], positions first
  bool is_noted_ = false;            // this step's lengths, without evicted tokens
  bool is_loose_ = false, is_resting_ = false;
};

}  // namespace kvlab
