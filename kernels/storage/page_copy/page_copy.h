#pragma once

#include <cstdint>

namespace kvlab {

class CudaContext;

// Copies pages between two pools, listed by number: page to_page[i] of `to` becomes page from_page[i] of `from`. The pools are one in GPU
// memory and one in pinned CPU memory, in either direction, or both in GPU memory. No page is written twice in a call.
struct PageCopyShape {
  std::int64_t pages = 0, page_bytes = 0;
};

// Over the link, each page once; the lists are 8 bytes per page.
constexpr std::int64_t bytes(const PageCopyShape& s) { return s.pages * (s.page_bytes + 8); }
constexpr std::int64_t flops(const PageCopyShape&) { return 0; }

struct PageCopy {
  enum class Method : std::uint8_t {
    kAutomatic,
    kKernel,  // a few multiprocessors read and write CPU memory themselves; page_bytes and pools are multiples of 16
    kEngine   // the copy engine, one copy for each run of neighbouring pages; lists in CPU memory
  };
  const std::uint8_t* from = nullptr;       // [*, page_bytes]
  std::uint8_t* to = nullptr;               // [*, page_bytes]
  const std::int32_t* from_page = nullptr;  // [pages]; an entry copies nothing if it or its partner is below 0
  const std::int32_t* to_page = nullptr;    // [pages]
  std::int64_t pages = 0, page_bytes = 0;
  // On a GPU: true if the lists are in CPU memory, as the copy engine needs. Lists that a kernel selected may stay in device memory.
  bool lists_on_host = true;
  Method method = Method::kAutomatic;
};

constexpr PageCopyShape shape(const PageCopy& a) { return {a.pages, a.page_bytes}; }
void run_cpu(const PageCopy& a);
// Asynchronous; lists in CPU memory may change on return, pools only after the stream is done.
void run_cuda(const PageCopy& a, CudaContext& cuda);

// The method that run_cuda uses for kAutomatic: the copy engine if the lists are few runs of neighbouring pages or the runs are long. Each
// run costs the engine a command (about a microsecond of driver and engine), in which a link of 55 GB/s moves some 50 KiB.
PageCopy::Method chosen_method(const PageCopy& a);

}  // namespace kvlab
