#pragma once

#include <cstdint>
#include <vector>

#include "base/big_array.h"
#include "kernels/kv_rows.h"

namespace kvlab {

// Memory for cached tokens in pages, shared by the layers and sequences that take from it: decoded float32 K and V, positions, and
// `num_words` statistics per token. Grows where no page is free; views of it are valid until then.
class KvPages {
 public:
  KvPages(std::int32_t head_dim, std::int32_t num_words, std::int32_t page_tokens)
      : head_dim_(head_dim), num_words_(num_words), page_tokens_(page_tokens) {}

  [[nodiscard]] std::int32_t take();
  // One more user of a page in use: it is free when each has given it back.
  void share(std::int32_t page) { ++users_[static_cast<std::size_t>(page)]; }
  [[nodiscard]] bool is_shared(std::int32_t page) const { return users_[static_cast<std::size_t>(page)] > 1; }
  // The first of `count` consecutive pages.
  [[nodiscard]] std::int32_t take_run(std::int32_t count);
  void give_back(std::int32_t page);
  // Room for so many pages, so that taking them moves nothing.
  void reserve(std::int32_t pages);
  // Everything of the first `tokens` of a page, from another pool of the same widths or this one.
  void copy_from(const KvPages& other, std::int32_t from, std::int32_t to, std::int32_t tokens);

  [[nodiscard]] std::int32_t page_tokens() const { return page_tokens_; }
  [[nodiscard]] std::int32_t head_dim() const { return head_dim_; }
  [[nodiscard]] std::int32_t num_words() const { return num_words_; }
  [[nodiscard]] std::int64_t used_pages() const { return made_ - static_cast<std::int64_t>(free_.size()); }
  [[nodiscard]] std::int64_t peak_pages() const { return peak_; }
  // K and V, position and statistics.
  [[nodiscard]] std::int64_t page_bytes() const { return std::int64_t{page_tokens_} * (8 * head_dim_ + 4 + 4 * num_words_); }

  // The data pointers and the size of the pool.
  void fill(KvRows& kv);

 private:
  std::int32_t head_dim_, num_words_, page_tokens_;
  std::int64_t capacity_ = 0, made_ = 0, peak_ = 0;  // pages: with memory, ever taken, most in use at once
  std::vector<std::int32_t> free_, users_;           // users_: of every page ever taken
  BigArray<float> k_, v_;
  BigArray<std::int32_t> position_;
  BigArray<std::uint32_t> words_;
};

}  // namespace kvlab
