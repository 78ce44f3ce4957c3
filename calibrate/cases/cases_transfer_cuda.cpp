// Pinned CPU memory and GPU: whole blocks, and lists of pages.

#include "calibrate/cases/op_case.h"
#include "kernels/storage/page_copy/page_copy.h"
#include "sim/cost/operations.h"

namespace kvlab {

namespace {

std::shared_ptr<void> pinned(std::int64_t bytes, std::uint8_t first) {
  std::shared_ptr<void> memory(cuda::allocate_pinned(bytes), cuda::free_pinned);
  auto* p = static_cast<std::uint8_t*>(memory.get());
  for (std::int64_t i = 0; i < bytes; ++i) p[i] = static_cast<std::uint8_t>(first + 7 * i + i / 251);
  return memory;
}

std::vector<std::uint8_t> bytes_of(const void* p, std::int64_t n) {
  const auto* from = static_cast<const std::uint8_t*>(p);
  return {from, from + n};
}

// One block, either way.
struct Transfer {
  void* device = nullptr;
  std::shared_ptr<void> host;
  std::int64_t size = 0;
  bool to_host = false;
};

void run_cuda(const Transfer& a, CudaContext& cuda) {
  if (a.to_host)
    cuda::to_host(a.host.get(), a.device, a.size, cuda.stream());
  else
    cuda::to_device(a.device, a.host.get(), a.size, cuda.stream());
}

// Pinned memory is slow to allocate, and transfers bypass the GPU's cache.
template <class Op>
KernelFamily pinned_family(std::string_view op, const Axes& axes, const ShapeValues& shapes, const ShapeValues& small,
                           const OpRecipe<Op>& recipe) {
  KernelFamily f = family_of(op, DeviceKind::kGpu, axes, shapes, small, recipe);
  f.format = "pinned";
  f.prepare = [prepare = f.prepare](TimedDevice& device, const Shape& shape, const Rotation&) { return prepare(device, shape, {}); };
  return f;
}

KernelFamily transfer(bool to_host) {
  const auto build = [=](Buffers& b, const Shape& s) {
    Transfer a{nullptr, pinned(s.at("bytes"), 1), s.at("bytes"), to_host};
    a.device = to_host ? static_cast<void*>(b.floats(a.size / 4 + 1)) : b.room<std::uint8_t>(a.size);
    return a;
  };
  const auto work = [](const Transfer& a, const Shape&) { return CaseWork{a.size, 0, {1, 0, 0}}; };
  const auto matches = [](TimedDevice& device, const Transfer& a, const Run& run) {
    run();
    return read_values(device, static_cast<const std::uint8_t*>(a.device), a.size) == bytes_of(a.host.get(), a.size);
  };
  ShapeValues sizes;
  for (std::int64_t bytes = 4096; bytes <= 256 << 20; bytes *= 4) sizes.push_back({bytes});
  return pinned_family<Transfer>(name_of(to_host ? OpId::kDeviceToHost : OpId::kHostToDevice), {{"bytes", "s"}}, sizes, {{1000}},
                                 {ElementType::kF32, build, work, matches});
}

// In random order between the pools.
struct PageList {
  PageCopy copy;
  std::shared_ptr<void> host;
};
void run_cuda(const PageList& a, CudaContext& cuda) { run_cuda(a.copy, cuda); }

KernelFamily page_list(bool to_host) {
  const auto build = [=](Buffers& b, const Shape& s) {
    PageList a;
    a.copy.pages = s.at("pages"), a.copy.page_bytes = s.at("page_bytes");
    const std::int64_t all = a.copy.pages * a.copy.page_bytes;
    a.host = pinned(all, 3);
    auto* host = static_cast<std::uint8_t*>(a.host.get());
    auto* device = to_host ? reinterpret_cast<std::uint8_t*>(b.floats(all / 4)) : b.room<std::uint8_t>(all);
    a.copy.from = to_host ? device : host, a.copy.to = to_host ? host : device;
    a.copy.from_page = b.host(shuffled(b, a.copy.pages)), a.copy.to_page = b.host(shuffled(b, a.copy.pages));
    return a;
  };
  const auto work = [](const PageList& a, const Shape&) { return CaseWork{bytes(shape(a.copy)), 0, {}}; };
  const auto matches = [=](TimedDevice& device, const PageList& a, const Run& run) {
    run();
    const std::int64_t each = a.copy.page_bytes;
    for (const std::int64_t i : sampled(a.copy.pages, 32)) {
      const std::uint8_t *from = a.copy.from + a.copy.from_page[i] * each, *to = a.copy.to + a.copy.to_page[i] * each;
      const std::uint8_t *on_host = to_host ? to : from, *on_device = to_host ? from : to;
      if (read_values(device, on_device, each) != bytes_of(on_host, each)) return false;
    }
    return true;
  };
  return pinned_family<PageList>(to_host ? "page_copy_to_host" : "page_copy_to_gpu", {{"pages", "p"}, {"page_bytes", "s"}},
                                 {{64, 8192}, {8192, 8192}, {8192, 4096}}, {{9, 64}}, {ElementType::kF32, build, work, matches});
}

}  // namespace

void add_transfer_cuda_cases(std::vector<KernelFamily>& families) {
  for (const bool to_host : {false, true}) {
    families.push_back(transfer(to_host));
    families.push_back(page_list(to_host));
  }
}

}  // namespace kvlab
