#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/append_kv/append_kv.h"
#include "policies/kv/cache/kv_pages.h"
#include "policies/kv/step.h"

namespace kvlab {

// One layer's cached tokens per (sequence, KV head). Without data only lengths.
class KvStore {
 public:
  // [kv_heads], outside a batch.
  struct Sequence {
    std::vector<std::int32_t> len;
    std::vector<std::vector<std::int32_t>> pages;
  };

  // Private pages.
  KvStore(const ModelShape& model, std::int32_t num_sequences, std::int32_t num_words, bool with_data);
  // Empty; rows take and return pages.
  KvStore(const ModelShape& model, std::shared_ptr<KvPages> pages);

  // Consecutive pages, so append() moves nothing. Only with private pages.
  void reserve(std::int32_t tokens);
  // k, v [tokens, kv_heads, head_dim], null without data. Statistics start at 0.
  void append(std::int32_t sequence, const float* k, const float* v, std::int32_t tokens, std::int32_t first_position);
  // In the pages' memory; null without data. On a GPU k and v may have another type than the pages; tokens are `token_stride` elements
  // apart (0: kv_heads * head_dim).
  void append(std::span<const AppendedTokens> news, ElementType type = ElementType::kF32, std::int64_t token_stride = 0);
  // From index `len` on.
  void shrink(std::int32_t row, std::int32_t len);
  // Frees the pages of a row stored elsewhere; append() gives new pages with only the new tokens. Only with shared pages. Other views stay
  // valid.
  void rest(std::int32_t row);
  void unshare(std::int32_t first_row, std::int32_t count);
  // Only without data.
  void assume(std::int32_t row, std::int32_t len);

  // At the end of the batch.
  void push(Sequence sequence);
  Sequence pop();

  // Valid until append, shrink, reserve, push or pop, or until the pool grows.
  [[nodiscard]] KvRows rows();
  [[nodiscard]] std::int32_t len(std::int32_t row) const { return len_[static_cast<std::size_t>(row)]; }
  [[nodiscard]] std::int32_t num_rows() const { return static_cast<std::int32_t>(len_.size()); }
  [[nodiscard]] bool has_data() const { return pages_ != nullptr; }
  [[nodiscard]] const TensorMemory& memory() const;

 private:
  static constexpr std::int32_t kPageTokens = 64;

  void make_room(std::int32_t row, std::int32_t len);
  void grow(const AppendedTokens& news);

  ModelShape model_;
  std::int32_t num_words_;
  std::shared_ptr<KvPages> pages_;  // null: without data
  bool is_shared_ = false;
  std::int32_t reserved_pages_ = 0;
  std::vector<std::int32_t> len_, page_begin_, page_;
  std::vector<std::vector<std::int32_t>> row_pages_;
  std::vector<std::int64_t> first_;
  bool is_listed_ = false;
};

// Ascending; needs data.
std::vector<std::vector<std::int32_t>> positions_of(const KvRows& kv);

}  // namespace kvlab
