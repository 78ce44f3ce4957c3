#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/append_kv/append_rows.h"
#include "kernels/model/rope/rotary.h"
#include "policies/kv/kv_pages.h"

namespace kvlab {

// Sizes of a model's attention that policies work with.
struct ModelShape {
  std::int32_t num_layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0, hidden_dim = 0;
  std::int32_t kv_bytes = 2;  // of one stored element of the uncompressed cache
  RopeForm rope = {};
  [[nodiscard]] std::int32_t group() const { return q_heads / kv_heads; }
};

// The cached tokens of one layer for a batch of sequences, each (sequence, KV head) with a length and pages of its own. Without data (the
// cost host) only lengths are kept.
class KvStore {
 public:
  // One sequence's rows, between batches: [kv_heads].
  struct Sequence {
    std::vector<std::int32_t> len;
    std::vector<std::vector<std::int32_t>> pages;
  };

  // Over pages of its own.
  KvStore(const ModelShape& model, std::int32_t num_sequences, std::int32_t num_words, bool with_data);
  // An empty batch over shared pages; a row takes pages as it grows and returns them as it shrinks.
  KvStore(const ModelShape& model, std::shared_ptr<KvPages> pages);

  // Room for `tokens` per row in consecutive pages, so that append() need not move anything before. Only over pages of its own.
  void reserve(std::int32_t tokens);
  // Appends tokens at consecutive positions to all rows of a sequence; k, v [tokens, kv_heads, head_dim] (null without data).
  // Statistics of new tokens are 0.
  void append(std::int32_t sequence, const float* k, const float* v, std::int32_t tokens, std::int32_t first_position);
  // The same for several sequences at once, in the memory of the pages; null without data. In a GPU's memory k and v may be of another type
  // than the pages, and their tokens are `token_stride` elements apart (0: kv_heads * head_dim).
  void append(std::span<const AppendedTokens> news, ElementType type = ElementType::kF32, std::int64_t token_stride = 0);
  // Removes the tokens after the first `len`, once the kept ones were compacted to the front.
  void shrink(std::int32_t row, std::int32_t len);
  // Gives back the row's pages, whose content is stored elsewhere until the row is appended to: it then has pages again, which hold only
  // the new tokens. Only over shared pages. Views stay valid for the other rows.
  void rest(std::int32_t row);
  // Gives rows [first_row, first_row + count) copies of the pages that they share, so that writes to them are private. All pages are copied
  // together.
  void unshare(std::int32_t first_row, std::int32_t count);
  // Sets lengths directly, to make up a state; only without data.
  void assume(std::int32_t row, std::int32_t len);

  // Adds a sequence at the end of the batch; takes the last one out of it.
  void push(Sequence sequence);
  Sequence pop();

  // All rows. The view is valid until append, shrink, reserve, push or pop is called, or the pool grows.
  [[nodiscard]] KvRows rows();
  [[nodiscard]] std::int32_t len(std::int32_t row) const { return len_[static_cast<std::size_t>(row)]; }
  [[nodiscard]] std::int32_t num_rows() const { return static_cast<std::int32_t>(len_.size()); }
  [[nodiscard]] bool has_data() const { return pages_ != nullptr; }
  [[nodiscard]] TensorMemory memory() const { return has_data() ? pages_->memory() : TensorMemory(); }

 private:
  void make_room(std::int32_t row, std::int32_t len);
  void grow(const AppendedTokens& news);
  void count_first();
  void list_pages();

  ModelShape model_;
  std::int32_t num_words_;
  std::shared_ptr<KvPages> pages_;  // null: without data
  bool is_shared_ = false;
  std::int32_t reserved_pages_ = 0;                    // that every row keeps
  std::vector<std::int32_t> len_, page_begin_, page_;  // page_: of all rows one after another
  std::vector<std::vector<std::int32_t>> row_pages_;
  std::vector<std::int64_t> first_;
  bool is_listed_ = false;  // page_ is up to date
};

// Positions of the tokens held, row by row, in the order of the rows. With data alone.
std::vector<std::vector<std::int32_t>> positions_of(const KvRows& kv);

}  // namespace kvlab
