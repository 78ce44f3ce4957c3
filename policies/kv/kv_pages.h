#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/tensor_memory.h"

namespace kvlab {

// Memory for cached tokens in pages, shared by the layers and sequences that take from it: decoded K and V, positions, and `num_words`
// statistics per token. Grows by half when no page is free; by less if a GPU has no memory for that, but by the needed pages at least.
// Views are valid until it grows. On a GPU K and V may be of 16 bits.
class KvPages {
 public:
  KvPages(std::int32_t head_dim, std::int32_t num_words, std::int32_t page_tokens, TensorMemory memory = {},
          ElementType type = ElementType::kF32)
      : head_dim_(head_dim), num_words_(num_words), page_tokens_(page_tokens), memory_(memory), type_(type) {}
  ~KvPages();
  KvPages(const KvPages&) = delete;
  KvPages& operator=(const KvPages&) = delete;

  [[nodiscard]] std::int32_t take();
  // One more user of a page in use: it is free when each has given it back.
  void share(std::int32_t page) { ++users_[static_cast<std::size_t>(page)]; }
  [[nodiscard]] bool is_shared(std::int32_t page) const { return users_[static_cast<std::size_t>(page)] > 1; }
  // The first of `count` consecutive pages.
  [[nodiscard]] std::int32_t take_run(std::int32_t count);
  void give_back(std::int32_t page);
  // Reserves this number of pages, so that taking them moves nothing. Error (InputError): they do not fit into the GPU's memory, or into
  // pinned memory; the pages that are there stay.
  void reserve(std::int32_t pages);
  // Writes to all of the pool's CPU memory before any page is taken: the first touch takes longer than a page's use.
  void touch();
  // Makes space so that this number of pages can be taken before views become invalid.
  void make_free(std::int64_t pages);
  // Everything of the first `tokens` of a page, from another pool of the same widths, type and memory.
  void copy_from(const KvPages& other, std::int32_t from, std::int32_t to, std::int32_t tokens);
  // Copies pages from[i] of another pool of the same widths, type and page size, or of this one, to pages to[i] of this one; no page is in
  // both lists. Between a GPU's memory and pinned memory it returns when the copies are complete; within a GPU's memory they are complete
  // for later launches.
  void copy_pages(const KvPages& other, std::span<const std::int32_t> from, std::span<const std::int32_t> to);

  [[nodiscard]] std::int32_t page_tokens() const { return page_tokens_; }
  [[nodiscard]] std::int32_t head_dim() const { return head_dim_; }
  [[nodiscard]] std::int32_t num_words() const { return num_words_; }
  [[nodiscard]] const TensorMemory& memory() const { return memory_; }
  [[nodiscard]] ElementType type() const { return type_; }           // of K and V
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }  // pages with memory
  [[nodiscard]] std::int64_t used_pages() const { return made_ - static_cast<std::int64_t>(free_.size()); }
  [[nodiscard]] std::int64_t peak_pages() const { return peak_; }
  // K and V, position and statistics.
  [[nodiscard]] std::int64_t page_bytes() const { return std::int64_t{page_tokens_} * token_bytes(); }

  // The data pointers and the size of the pool.
  void fill(KvRows& kv);

 private:
  // One of the arrays: `planes` times the pool's tokens, each of `token_bytes`.
  struct Array {
    void* data = nullptr;
    std::int64_t bytes = 0;
  };
  [[nodiscard]] std::int64_t vector_bytes() const { return head_dim_ * element_bytes(type_); }
  [[nodiscard]] std::int64_t token_bytes() const { return 2 * vector_bytes() + 4 + 4 * num_words_; }
  void grow(std::int64_t needed);
  [[nodiscard]] bool can_widen(std::int64_t pages) const;
  void widen_all(std::int64_t pages);
  void widen(Array& array, std::int64_t token_bytes, std::int64_t planes, std::int64_t pages);
  void copy_page(const Array& from, std::int64_t from_token, const Array& to, std::int64_t to_token, std::int64_t tokens,
                 std::int64_t token_bytes) const;

  std::int32_t head_dim_, num_words_, page_tokens_;
  TensorMemory memory_;
  ElementType type_;
  std::int64_t capacity_ = 0, made_ = 0, peak_ = 0;  // pages: with memory, ever taken, most in use at once
  std::vector<std::int32_t> free_, users_;           // users_: of every page ever taken
  Array k_, v_, position_, words_;
};

}  // namespace kvlab
