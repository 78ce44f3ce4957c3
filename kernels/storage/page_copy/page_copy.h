#pragma once

#include <cstdint>
#include <vector>

namespace kvlab {

class CudaContext;

// Page to_page[i] of `to` becomes page from_page[i] of `from`: GPU and pinned CPU memory in either direction, or GPU memory. No page is
// written twice.
struct PageCopyShape {
  std::int64_t pages = 0, page_bytes = 0;
};

// Over the link; the lists are 8 bytes per page.
constexpr std::int64_t bytes(const PageCopyShape& s) { return s.pages * (s.page_bytes + 8); }
constexpr std::int64_t flops(const PageCopyShape&) { return 0; }

struct PageCopy {
  enum class Method : std::uint8_t {
    kAutomatic,
    kKernel,  // multiprocessors read and write CPU memory; page_bytes and pools are multiples of 16
    kEngine   // a copy per run of neighbouring pages; lists in CPU memory
  };
  const std::uint8_t* from = nullptr;       // [*, page_bytes]
  std::uint8_t* to = nullptr;               // [*, page_bytes]
  const std::int32_t* from_page = nullptr;  // [pages]; below 0 in either list: no copy
  const std::int32_t* to_page = nullptr;    // [pages]
  std::int64_t pages = 0, page_bytes = 0;
  // On a GPU: lists in CPU memory, as the copy engine needs.
  bool lists_on_host = true;
  Method method = Method::kAutomatic;
};

constexpr PageCopyShape shape(const PageCopy& a) { return {a.pages, a.page_bytes}; }
void run_cpu(const PageCopy& a);
// Asynchronous; lists in CPU memory may change on return, pools after the stream is done.
void run_cuda(const PageCopy& a, CudaContext& cuda);

// The copy engine for few or long runs of neighbouring pages.
PageCopy::Method chosen_method(const PageCopy& a);

// Pages [from, from + count) become pages [to, to + count).
struct PageRun {
  std::int64_t from = 0, to = 0, count = 0;
};

// Neighbouring pages are joined; the lists are in CPU memory.
std::vector<PageRun> page_runs(const PageCopy& a);

}  // namespace kvlab
