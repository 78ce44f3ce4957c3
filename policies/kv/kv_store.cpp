#include "policies/kv/kv_store.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"

namespace kvlab {

namespace {

constexpr std::int32_t kPageTokens = 64;

}  // namespace

KvStore::KvStore(const ModelShape& model, std::int32_t num_sequences, std::int32_t num_words, bool with_data)
    : model_(model), num_words_(num_words), with_data_(with_data) {
  const auto rows = static_cast<std::size_t>(num_sequences) * static_cast<std::size_t>(model.kv_heads);
  len_.assign(rows, 0);
  page_begin_.assign(rows, 0);
  first_.assign(rows + 1, 0);
}

void KvStore::reserve(std::int32_t tokens) {
  if (tokens <= capacity_) return;
  const std::int32_t pages = (tokens + kPageTokens - 1) / kPageTokens, capacity = pages * kPageTokens;
  const auto rows = len_.size(), old = static_cast<std::size_t>(capacity_), now = static_cast<std::size_t>(capacity);
  const auto move_rows = [&](auto& data, std::size_t width, std::size_t planes) {
    std::remove_reference_t<decltype(data)> wider(planes * rows * now * width);
    for (std::size_t r = 0; r < planes * rows; ++r) std::copy_n(data.data() + r * old * width, old * width, wider.data() + r * now * width);
    data = std::move(wider);
  };
  if (with_data_) {
    move_rows(k_, static_cast<std::size_t>(model_.head_dim), 1);
    move_rows(v_, static_cast<std::size_t>(model_.head_dim), 1);
    move_rows(position_, 1, 1);
    move_rows(words_, 1, static_cast<std::size_t>(num_words_));
  }
  capacity_ = capacity;
  if (!with_data_) return;  // nothing lies in pages
  page_.resize(rows * static_cast<std::size_t>(pages));
  std::iota(page_.begin(), page_.end(), 0);
  for (std::size_t r = 0; r < rows; ++r) page_begin_[r] = static_cast<std::int32_t>(r) * pages;
}

void KvStore::append(std::int32_t sequence, const float* k, const float* v, std::int32_t tokens, std::int32_t first_position) {
  const std::int32_t heads = model_.kv_heads;
  std::int32_t longest = 0;
  for (std::int32_t h = 0; h < heads; ++h) longest = std::max(longest, len(sequence * heads + h));
  if (longest + tokens > capacity_) reserve(std::max(longest + tokens, capacity_ + capacity_ / 2));
  const KvRows kv = rows();
  std::vector<std::int32_t> begin;
  for (std::int32_t h = 0; h < heads; ++h) begin.push_back(len(sequence * heads + h));
  for (std::int32_t h = 0; h < heads; ++h) len_[static_cast<std::size_t>(sequence * heads + h)] += tokens;
  if (!with_data_) return;
  const auto write = [&](std::int32_t h, std::int32_t i) {
    const std::int64_t d = model_.head_dim, from = (static_cast<std::int64_t>(i) * heads + h) * d;
    const std::int64_t slot = kv.slot(sequence * heads + h, begin[static_cast<std::size_t>(h)] + i);
    std::copy_n(k + from, d, k_.data() + slot * d);
    std::copy_n(v + from, d, v_.data() + slot * d);
    position_.data()[slot] = first_position + i;
    for (std::int32_t w = 0; w < num_words_; ++w) words_.data()[w * kv.pool_tokens + slot] = 0;
  };
  for_each_in_parallel((tokens + kPageTokens - 1) / kPageTokens, [&](std::int64_t part) {
    const auto first = static_cast<std::int32_t>(part) * kPageTokens;
    for (std::int32_t i = first; i < std::min(first + kPageTokens, tokens); ++i)
      for (std::int32_t h = 0; h < heads; ++h) write(h, i);
  });
}

void KvStore::shrink(std::int32_t row, std::int32_t len) {
  if (len < 0 || len > this->len(row)) throw InternalError("a row of the KV store cannot grow by shrinking");
  len_[static_cast<std::size_t>(row)] = len;
}

void KvStore::assume(std::int32_t row, std::int32_t len) {
  if (with_data_) throw InternalError("lengths can be assumed only where there is no data");
  reserve(len);
  len_[static_cast<std::size_t>(row)] = len;
}

void KvStore::count_first() {
  for (std::size_t r = 0; r < len_.size(); ++r) first_[r + 1] = first_[r] + len_[r];
}

KvRows KvStore::rows() {
  count_first();
  KvRows kv;
  kv.num_rows = num_rows();
  kv.kv_heads = model_.kv_heads;
  kv.group = model_.group();
  kv.head_dim = model_.head_dim;
  kv.kv_bytes = model_.kv_bytes;
  kv.len = len_.data();
  kv.first = first_.data();
  kv.page_begin = page_begin_.data();
  kv.page = page_.data();
  kv.page_tokens = kPageTokens;
  kv.pool_tokens = static_cast<std::int64_t>(len_.size()) * capacity_;
  kv.num_words = num_words_;
  if (with_data_) {
    kv.k = k_.data();
    kv.v = v_.data();
    kv.position = position_.data();
    kv.words = words_.data();
  }
  return kv;
}

}  // namespace kvlab
