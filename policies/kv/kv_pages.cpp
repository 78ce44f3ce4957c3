#include "policies/kv/kv_pages.h"

#include <algorithm>

#include "base/error.h"

namespace kvlab {

namespace {

template <class T>
void widen(BigArray<T>& data, std::int64_t used, std::int64_t old, std::int64_t now, std::int64_t planes) {
  BigArray<T> wider(static_cast<std::size_t>(planes * now));
  for (std::int64_t p = 0; p < planes; ++p) std::copy_n(data.data() + p * old, used, wider.data() + p * now);
  data = std::move(wider);
}

}  // namespace

void KvPages::reserve(std::int32_t pages) {
  if (pages <= capacity_) return;
  const std::int64_t used = made_ * page_tokens_, old = capacity_ * page_tokens_, now = std::int64_t{pages} * page_tokens_;
  widen(k_, used * head_dim_, old * head_dim_, now * head_dim_, 1);
  widen(v_, used * head_dim_, old * head_dim_, now * head_dim_, 1);
  widen(position_, used, old, now, 1);
  widen(words_, used, old, now, num_words_);
  capacity_ = pages;
}

std::int32_t KvPages::take_run(std::int32_t count) {
  if (made_ + count > capacity_) reserve(static_cast<std::int32_t>(std::max(made_ + count, capacity_ + capacity_ / 2)));
  const auto first = static_cast<std::int32_t>(made_);
  made_ += count;
  users_.resize(static_cast<std::size_t>(made_), 1);
  peak_ = std::max(peak_, used_pages());
  return first;
}

std::int32_t KvPages::take() {
  if (free_.empty()) return take_run(1);
  const std::int32_t page = free_.back();
  free_.pop_back();
  users_[static_cast<std::size_t>(page)] = 1;
  peak_ = std::max(peak_, used_pages());
  return page;
}

void KvPages::give_back(std::int32_t page) {
  if (page < 0 || page >= made_) throw InternalError("a page was returned to a pool that it is not of");
  std::int32_t& users = users_[static_cast<std::size_t>(page)];
  if (users == 0) throw InternalError("a page was returned twice");
  if (--users == 0) free_.push_back(page);
}

void KvPages::copy_from(const KvPages& other, std::int32_t from, std::int32_t to, std::int32_t tokens) {
  const std::int64_t a = std::int64_t{from} * other.page_tokens_, b = std::int64_t{to} * page_tokens_, d = head_dim_;
  std::copy_n(other.k_.data() + a * d, tokens * d, k_.data() + b * d);
  std::copy_n(other.v_.data() + a * d, tokens * d, v_.data() + b * d);
  std::copy_n(other.position_.data() + a, tokens, position_.data() + b);
  for (std::int64_t w = 0; w < num_words_; ++w)
    std::copy_n(other.words_.data() + w * other.capacity_ * other.page_tokens_ + a, tokens,
                words_.data() + w * capacity_ * page_tokens_ + b);
}

void KvPages::fill(KvRows& kv) {
  kv.page_tokens = page_tokens_;
  kv.pool_tokens = capacity_ * page_tokens_;
  kv.num_words = num_words_;
  kv.k = k_.data();
  kv.v = v_.data();
  kv.position = position_.data();
  kv.words = words_.data();
}

}  // namespace kvlab
