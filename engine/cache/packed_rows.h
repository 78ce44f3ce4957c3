#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cache/row_code.h"

namespace kvlab {

// A layer's rows of one sequence between its steps, as its format stores them, in the host's memory: codes, what is not encoded in the
// model's precision, positions and statistics. Rows come to rest here, and are filled again from here, bit for bit.
class PackedRows {
 public:
  PackedRows() = default;
  explicit PackedRows(std::int32_t kv_heads) : rows_(static_cast<std::size_t>(kv_heads)) {}

  // What an operation encoded of the sequence's rows, the first of which is `first_row` of the operation's, in a step of `new_tokens`.
  template <class Op>
  void keep(const Op& op, const ListedTokens& tokens, std::int32_t first_row, std::int32_t new_tokens) {
    note_lengths(tokens.kv, first_row, new_tokens);
    for (std::size_t h = 0; h < rows_.size() && !is_loose_; ++h)
      if (auto code = row_code(op, first_row + static_cast<std::int32_t>(h)); code != nullptr)
        keep(rows_[h].sides[tokens.values ? 1 : 0], std::move(code));
  }
  // After such a step. Rows that lost encoded tokens since they were encoded are not stored here any more: of a group of which some tokens
  // are left, the bytes are those of the whole group.
  void settle(const KvRows& kv, std::int32_t first_row, std::int32_t new_tokens);
  // Something is encoded, and nothing of it was lost.
  [[nodiscard]] bool can_rest() const;

  // Rows first_row to first_row + kv_heads come to rest.
  void take(const KvRows& kv, std::int32_t first_row);
  [[nodiscard]] bool is_resting() const { return is_resting_; }
  // Fills the rows' first tokens, those that rested.
  void fill(const KvRows& kv, std::int32_t first_row);

  [[nodiscard]] std::int64_t kv_bytes() const;      // of K and V at rest
  [[nodiscard]] std::int64_t beside_bytes() const;  // positions and statistics
  [[nodiscard]] const std::vector<std::int32_t>& positions(std::int32_t head) const {
    return rows_[static_cast<std::size_t>(head)].position;
  }

 private:
  struct Side {  // K or V
    std::vector<std::unique_ptr<RowCode>> codes;
    std::vector<TokenRun> dense_runs;
    std::vector<float> dense;
  };
  struct Row {
    std::array<Side, 2> sides;
    std::int32_t len = 0;  // when it was last looked at
    std::vector<std::int32_t> position;
    std::vector<std::uint32_t> words;  // [num_words, tokens]
  };
  static bool has_codes(const Row& row) { return !row.sides[0].codes.empty() || !row.sides[1].codes.empty(); }
  void note_lengths(const KvRows& kv, std::int32_t first_row, std::int32_t new_tokens);
  static void keep(Side& side, std::unique_ptr<RowCode> code);
  static void take_row(Row& row, const KvRows& kv, std::int32_t r);
  static void fill_row(const Row& row, const KvRows& kv, std::int32_t r);

  std::vector<Row> rows_;
  bool is_noted_ = false;  // lengths of this step, evicted tokens left out
  bool is_loose_ = false, is_resting_ = false;
};

}  // namespace kvlab
