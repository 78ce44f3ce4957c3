#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/big_array.h"
#include "kernels/kv_rows.h"

namespace kvlab {

// Sizes of a model's attention that policies work with.
struct ModelShape {
  std::int32_t num_layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0, hidden_dim = 0;
  std::int32_t kv_bytes = 2;  // of one stored element of the uncompressed cache
  double rope_base = 0;       // 0: no RoPE
  [[nodiscard]] std::int32_t group() const { return q_heads / kv_heads; }
};

// The cached tokens of one layer for a batch of sequences, each (sequence, KV head) with a length of its own; decoded float32
// values, positions and `num_words` statistics per token. Without data (the cost host) only lengths are kept.
class KvStore {
 public:
  KvStore(const ModelShape& model, std::int32_t num_sequences, std::int32_t num_words, bool with_data);

  // Room for `tokens` per row, so that append() need not move anything before.
  void reserve(std::int32_t tokens);
  // Appends tokens at consecutive positions to all rows of a sequence; k, v [tokens, kv_heads, head_dim] (null without data).
  // Statistics of new tokens are 0.
  void append(std::int32_t sequence, const float* k, const float* v, std::int32_t tokens, std::int32_t first_position);
  // Forgets tokens behind `len`, after they were compacted away.
  void shrink(std::int32_t row, std::int32_t len);
  // Sets lengths outright; only without data, where a state is made up.
  void assume(std::int32_t row, std::int32_t len);

  // All rows. The view is valid until append, shrink or reserve is called.
  [[nodiscard]] KvRows rows();
  [[nodiscard]] std::int32_t len(std::int32_t row) const { return len_[static_cast<std::size_t>(row)]; }
  [[nodiscard]] std::int32_t num_rows() const { return static_cast<std::int32_t>(len_.size()); }
  [[nodiscard]] bool has_data() const { return with_data_; }

 private:
  void count_first();

  ModelShape model_;
  std::int32_t num_words_, capacity_ = 0;  // tokens per row, whole pages
  bool with_data_;
  std::vector<std::int32_t> len_, page_begin_, page_;
  std::vector<std::int64_t> first_;
  BigArray<float> k_, v_;
  BigArray<std::int32_t> position_;
  BigArray<std::uint32_t> words_;
};

}  // namespace kvlab
