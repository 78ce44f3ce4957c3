#include "policies/kv/cache/kv_pages.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/storage/page_copy/page_copy.h"

namespace kvlab {

KvPages::~KvPages() {
  for (const Array* array : {&k_, &v_, &position_, &words_})
    if (array->data != nullptr) memory_.free(array->data, array->bytes);
}

void KvPages::widen(const Member& member, std::int64_t pages) {
  const auto& [pointer, token_bytes, planes] = member;
  Array& array = this->*pointer;
  const std::int64_t used = made_ * page_tokens_ * token_bytes, old = capacity_ * page_tokens_ * token_bytes;
  const std::int64_t now = pages * page_tokens_ * token_bytes;
  if (planes * now <= array.bytes) return;
  const Array wider{memory_.allocate(planes * now), planes * now};
  for (std::int64_t p = 0; p < planes && array.data != nullptr; ++p)
    memory_.copy(static_cast<char*>(wider.data) + p * now, static_cast<const char*>(array.data) + p * old, used);
  if (array.data != nullptr) memory_.free(array.data, array.bytes);
  array = wider;
}

void KvPages::make_free(std::int64_t pages) {
  const std::int64_t needed = made_ + pages - static_cast<std::int64_t>(free_.size());
  if (needed > capacity_) grow(needed);
}

void KvPages::grow(std::int64_t needed) {
  const std::int64_t wanted = std::min<std::int64_t>(capacity_ + capacity_ / 2, INT32_MAX);
  for (std::int64_t spare = wanted - needed; spare > needed / 32; spare /= 2) {
    if (!can_widen(needed + spare)) continue;
    try {
      return widen_all(needed + spare);
    } catch (const GpuMemoryError&) {  // fragmented
    } catch (const PinnedMemoryError&) {
    }
  }
  reserve(static_cast<std::int32_t>(needed));
}

// Widens one array at a time; the old one is freed after its copy.
bool KvPages::can_widen(std::int64_t pages) const {
  if (memory_.on_host()) return true;
  std::int64_t free = cuda::free_bytes();
  const std::int64_t tokens = pages * page_tokens_;
  for (const auto& [array, token_bytes, planes] : members()) {
    const std::int64_t wider = tokens * token_bytes * planes, bytes = (this->*array).bytes;
    if (wider <= bytes) continue;
    if (wider > free) return false;
    free += bytes - wider;
  }
  return true;
}

void KvPages::widen_all(std::int64_t pages) {
  for (const Member& member : members()) widen(member, pages);
  capacity_ = pages;
}

void KvPages::reserve(std::int32_t pages) {
  if (pages <= capacity_) return;
  const double gib = static_cast<double>(pages * page_bytes()) / 0x1p30;
  try {
    widen_all(pages);
  } catch (const GpuMemoryError& e) {
    throw InputError(
        fmt::format("the KV cache does not fit into the GPU's memory: {} pages of {} tokens for one KV head are {:.2f} GiB, "
                    "{} of them are in use; run fewer or shorter sequences at a time, or another policy ({})",
                    pages, page_tokens_, gib, used_pages(), e.what()));
  } catch (const PinnedMemoryError& e) {
    throw InputError(
        fmt::format("swapped KV does not fit into pinned host memory: {} pages of {} tokens for one KV head are {:.2f} GiB; give the "
                    "run a smaller 'host_memory_bytes' ({})",
                    pages, page_tokens_, gib, e.what()));
  }
}

void KvPages::touch() {
  if (!memory_.on_host()) return;
  if (made_ > 0) throw InternalError("pages that are in use would be written over");
  for (const Array* array : {&k_, &v_, &position_, &words_}) memory_.fill(array->data, 0, array->bytes);
}

std::int32_t KvPages::take_run(std::int32_t count) {
  if (made_ + count > capacity_) grow(made_ + count);
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
  for (const auto& [array, token_bytes, planes] : members())
    for (std::int64_t p = 0; p < planes; ++p) {
      const std::int64_t a = (p * other.capacity_ + from) * other.page_tokens_, b = (p * capacity_ + to) * page_tokens_;
      memory_.copy(static_cast<char*>((this->*array).data) + b * token_bytes,
                   static_cast<const char*>((other.*array).data) + a * token_bytes, tokens * token_bytes);
    }
}

void KvPages::copy_pages(const KvPages& other, std::span<const std::int32_t> from, std::span<const std::int32_t> to) {
  if (to.empty()) return;
  CudaContext* const cuda = memory_.on_host() ? other.memory_.cuda() : memory_.cuda();
  for (const auto& [array, token_bytes, planes] : members())
    for (std::int64_t p = 0; p < planes; ++p) {
      PageCopy op{.pages = std::ssize(to), .page_bytes = page_tokens_ * token_bytes};
      op.from = static_cast<const std::uint8_t*>((other.*array).data) + p * other.capacity_ * op.page_bytes;
      op.to = static_cast<std::uint8_t*>((this->*array).data) + p * capacity_ * op.page_bytes;
      op.from_page = from.data(), op.to_page = to.data();
      if (cuda == nullptr)
        run_cpu(op);
      else
        run_cuda(op, *cuda);
    }
  if (cuda != nullptr && (memory_.on_host() || other.memory_.on_host())) cuda->synchronize();
}

void KvPages::fill(KvRows& kv) {
  kv.page_tokens = page_tokens_;
  kv.pool_tokens = capacity_ * page_tokens_;
  kv.num_words = num_words_;
  kv.type = type_;
  kv.k = static_cast<float*>(k_.data);
  kv.v = static_cast<float*>(v_.data);
  kv.position = static_cast<std::int32_t*>(position_.data);
  kv.words = static_cast<std::uint32_t*>(words_.data);
}

}  // namespace kvlab
