#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/tensor_memory.h"

namespace kvlab {

// K, V, positions and `num_words` statistics per token. Grows by half when full, or by less if GPU memory is short; this invalidates views.
// On a GPU K and V may be 16-bit.
class KvPages {
 public:
  KvPages(std::int32_t head_dim, std::int32_t num_words, std::int32_t page_tokens, TensorMemory memory = {},
          ElementType type = ElementType::kF32)
      : head_dim_(head_dim), num_words_(num_words), page_tokens_(page_tokens), memory_(memory), type_(type) {}
  ~KvPages();
  KvPages(const KvPages&) = delete;
  KvPages& operator=(const KvPages&) = delete;

  [[nodiscard]] std::int32_t take();
  // Every user gives the page back.
  void share(std::int32_t page) { ++users_[static_cast<std::size_t>(page)]; }
  [[nodiscard]] bool is_shared(std::int32_t page) const { return users_[static_cast<std::size_t>(page)] > 1; }
  // The first of `count` consecutive pages.
  [[nodiscard]] std::int32_t take_run(std::int32_t count);
  void give_back(std::int32_t page);
  // Throws InputError if GPU or pinned memory does not suffice; existing pages stay.
  void reserve(std::int32_t pages);
  // Before any page is taken: writes to all CPU memory, since first writes are slow.
  void touch();
  // Views stay valid while this number of pages is taken.
  void make_free(std::int64_t pages);
  // The pools have the same widths, type and memory.
  void copy_from(const KvPages& other, std::int32_t from, std::int32_t to, std::int32_t tokens);
  // Copies pages from[i] of a pool of the same widths, type and page size (or this one) to pages to[i]; disjoint lists. Synchronous between
  // GPU and pinned memory; within a GPU complete for later launches.
  void copy_pages(const KvPages& other, std::span<const std::int32_t> from, std::span<const std::int32_t> to);

  [[nodiscard]] std::int32_t page_tokens() const { return page_tokens_; }
  [[nodiscard]] std::int32_t head_dim() const { return head_dim_; }
  [[nodiscard]] std::int32_t num_words() const { return num_words_; }
  [[nodiscard]] const TensorMemory& memory() const { return memory_; }
  [[nodiscard]] ElementType type() const { return type_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] std::int64_t used_pages() const { return made_ - static_cast<std::int64_t>(free_.size()); }
  [[nodiscard]] std::int64_t peak_pages() const { return peak_; }
  [[nodiscard]] std::int64_t page_bytes() const { return std::int64_t{page_tokens_} * token_bytes(); }

  void fill(KvRows& kv);

 private:
  struct Array {
    void* data = nullptr;
    std::int64_t bytes = 0;
  };
  [[nodiscard]] std::int64_t vector_bytes() const { return head_dim_ * element_bytes(type_); }
  [[nodiscard]] std::int64_t token_bytes() const { return 2 * vector_bytes() + 4 + 4 * num_words_; }
  struct Member {
    Array KvPages::*array;
    std::int64_t token_bytes, planes;
  };
  // The statistics' planes move apart when widened: last.
  [[nodiscard]] std::array<Member, 4> members() const {
    return {{{&KvPages::k_, vector_bytes(), 1},
             {&KvPages::v_, vector_bytes(), 1},
             {&KvPages::position_, 4, 1},
             {&KvPages::words_, 4, num_words_}}};
  }
  void grow(std::int64_t needed);
  [[nodiscard]] bool can_widen(std::int64_t pages) const;
  void widen_all(std::int64_t pages);
  void widen(const Member& member, std::int64_t pages);

  std::int32_t head_dim_, num_words_, page_tokens_;
  TensorMemory memory_;
  ElementType type_;
  std::int64_t capacity_ = 0, made_ = 0, peak_ = 0;  // pages: allocated, ever taken, most in use
  std::vector<std::int32_t> free_, users_;           // per page ever taken
  Array k_, v_, position_, words_;
};

}  // namespace kvlab
