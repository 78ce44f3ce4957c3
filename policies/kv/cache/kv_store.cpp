#include "policies/kv/cache/kv_store.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "base/error.h"

namespace kvlab {

KvStore::KvStore(const ModelShape& model, std::int32_t num_sequences, std::int32_t num_words, bool with_data)
    : model_(model), num_words_(num_words) {
  if (with_data) pages_ = std::make_shared<KvPages>(model.head_dim, num_words, kPageTokens);
  const auto rows = static_cast<std::size_t>(num_sequences) * static_cast<std::size_t>(model.kv_heads);
  len_.assign(rows, 0);
  page_begin_.assign(rows, 0);
  first_.assign(rows + 1, 0);
  if (with_data) row_pages_.resize(rows);
}

KvStore::KvStore(const ModelShape& model, std::shared_ptr<KvPages> pages)
    : model_(model), num_words_(pages->num_words()), pages_(std::move(pages)), is_shared_(true), first_(1, 0) {}

void KvStore::reserve(std::int32_t tokens) {
  if (!has_data()) return;  // shapes only
  if (is_shared_) throw InternalError("rows over shared pages take them one by one");
  const std::int32_t pages = ceil_div(tokens, kPageTokens);
  if (pages <= reserved_pages_) return;
  auto wider = std::make_shared<KvPages>(model_.head_dim, pages_->num_words(), kPageTokens, pages_->memory(), pages_->type());
  wider->reserve(pages * num_rows());
  for (std::int32_t r = 0; r < num_rows(); ++r) {
    std::vector<std::int32_t>& own = row_pages_[static_cast<std::size_t>(r)];
    const std::int32_t first = wider->take_run(pages);
    const std::vector<std::int32_t> old = std::move(own);
    own.clear();
    for (std::int32_t p = 0; p < pages; ++p) own.push_back(first + p);
    for (std::int32_t p = 0; p < ceil_div(len(r), kPageTokens); ++p)
      wider->copy_from(*pages_, old[static_cast<std::size_t>(p)], first + p, std::min(kPageTokens, len(r) - p * kPageTokens));
  }
  pages_ = std::move(wider);
  reserved_pages_ = pages;
  is_listed_ = false;
}

void KvStore::make_room(std::int32_t row, std::int32_t len) {
  std::vector<std::int32_t>& own = row_pages_[static_cast<std::size_t>(row)];
  while (static_cast<std::int32_t>(own.size()) < ceil_div(len, pages_->page_tokens())) {
    own.push_back(pages_->take());
    is_listed_ = false;
  }
}

void KvStore::append(std::int32_t sequence, const float* k, const float* v, std::int32_t tokens, std::int32_t first_position) {
  const AppendedTokens news{sequence, tokens, first_position, k, v};
  append({&news, 1});
}

void KvStore::append(std::span<const AppendedTokens> news, ElementType type, std::int64_t token_stride) {
  for (const AppendedTokens& n : news) grow(n);
  if (!has_data()) return;
  const AppendRows op{rows(), news, type, token_stride};
  if (CudaContext* const cuda = pages_->memory().cuda(); cuda != nullptr) return run_cuda(op, *cuda);
  if (type != ElementType::kF32) throw InternalError("keys and values in the host's memory are float32");
  run_cpu(op);
}

void KvStore::grow(const AppendedTokens& news) {
  const std::int32_t heads = model_.kv_heads, first_row = news.sequence * heads;
  if (has_data() && !is_shared_) {
    std::int32_t longest = 0;
    for (std::int32_t h = 0; h < heads; ++h) longest = std::max(longest, len(first_row + h));
    const std::int32_t capacity = reserved_pages_ * kPageTokens;
    if (longest + news.count > capacity) reserve(std::max(longest + news.count, capacity + capacity / 2));
  }
  for (std::int32_t row = first_row; row < first_row + heads; ++row) {
    if (has_data()) make_room(row, len(row) + news.count);
    len_[static_cast<std::size_t>(row)] += news.count;
  }
}

void KvStore::shrink(std::int32_t row, std::int32_t len) {
  if (len < 0 || len > this->len(row)) throw InternalError("a row of the KV store cannot grow by shrinking");
  len_[static_cast<std::size_t>(row)] = len;
  if (!has_data()) return;
  std::vector<std::int32_t>& own = row_pages_[static_cast<std::size_t>(row)];
  const std::int32_t kept = std::max(reserved_pages_, ceil_div(len, pages_->page_tokens()));
  while (static_cast<std::int32_t>(own.size()) > kept) {
    pages_->give_back(own.back());
    own.pop_back();
    is_listed_ = false;
  }
}

void KvStore::rest(std::int32_t row) {
  if (!is_shared_) throw InternalError("rows over pages of their own keep them");
  std::vector<std::int32_t>& own = row_pages_[static_cast<std::size_t>(row)];
  for (const std::int32_t page : own) pages_->give_back(page);
  own.clear();
  is_listed_ = false;
}

// Pages after a row's last token need no copy.
void KvStore::unshare(std::int32_t first_row, std::int32_t count) {
  std::vector<std::int32_t> shared, own;
  for (std::int32_t row = first_row; row < first_row + count; ++row) {
    std::int32_t left = len(row);
    for (std::int32_t& page : row_pages_[static_cast<std::size_t>(row)]) {
      if (pages_->is_shared(page)) {
        const std::int32_t fresh = pages_->take();
        if (left > 0) shared.push_back(page), own.push_back(fresh);
        pages_->give_back(page);
        page = fresh;
        is_listed_ = false;
      }
      left -= pages_->page_tokens();
    }
  }
  pages_->copy_pages(*pages_, shared, own);
}

void KvStore::assume(std::int32_t row, std::int32_t len) {
  if (has_data()) throw InternalError("lengths can be assumed only where there is no data");
  len_[static_cast<std::size_t>(row)] = len;
}

void KvStore::push(Sequence sequence) {
  len_.insert(len_.end(), sequence.len.begin(), sequence.len.end());
  for (auto& pages : sequence.pages) row_pages_.push_back(std::move(pages));
  first_.resize(len_.size() + 1);
  page_begin_.resize(len_.size());
  is_listed_ = false;
}

KvStore::Sequence KvStore::pop() {
  const auto heads = static_cast<std::size_t>(model_.kv_heads), begin = len_.size() - heads;
  Sequence sequence{{len_.begin() + static_cast<std::ptrdiff_t>(begin), len_.end()}, {}};
  for (std::size_t r = begin; r < len_.size(); ++r) sequence.pages.push_back(std::move(row_pages_[r]));
  len_.resize(begin);
  row_pages_.resize(begin);
  first_.resize(begin + 1);
  page_begin_.resize(begin);
  is_listed_ = false;
  return sequence;
}

KvRows KvStore::rows() {
  for (std::size_t r = 0; r < len_.size(); ++r) first_[r + 1] = first_[r] + len_[r];
  if (has_data() && !is_listed_) {
    page_.clear();
    for (std::size_t r = 0; r < row_pages_.size(); ++r) {
      page_begin_[r] = static_cast<std::int32_t>(page_.size());
      page_.insert(page_.end(), row_pages_[r].begin(), row_pages_[r].end());
    }
    is_listed_ = true;
  }
  KvRows kv{.num_rows = num_rows(),
            .kv_heads = model_.kv_heads,
            .group = model_.group(),
            .head_dim = model_.head_dim,
            .kv_bytes = model_.kv_bytes,
            .len = len_.data(),
            .first = first_.data(),
            .page_begin = page_begin_.data(),
            .page = page_.data(),
            .page_tokens = kPageTokens,
            .num_words = num_words_};
  if (has_data()) pages_->fill(kv);
  return kv;
}

std::vector<std::vector<std::int32_t>> positions_of(const KvRows& kv) {
  std::vector<std::vector<std::int32_t>> all(static_cast<std::size_t>(kv.num_rows));
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    std::vector<std::int32_t>& row = all[static_cast<std::size_t>(r)];
    for (std::int32_t i = 0; i < kv.len[r]; ++i) row.push_back(kv.position[kv.slot(r, i)]);
    std::sort(row.begin(), row.end());
  }
  return all;
}

const TensorMemory& KvStore::memory() const {
  static const TensorMemory in_cpu_memory;
  return has_data() ? pages_->memory() : in_cpu_memory;
}

}  // namespace kvlab
