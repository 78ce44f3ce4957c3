#include "kernels/storage/page_copy/page_copy.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/cuda/cuda_fixture.h"

namespace kvlab {
namespace {

using Method = PageCopy::Method;

struct FreePinned {
  void operator()(std::uint8_t* p) const noexcept { cuda::free_pinned(p); }
};
using Pinned = std::unique_ptr<std::uint8_t, FreePinned>;
Pinned pinned(const std::vector<std::uint8_t>& x) {
  Pinned p(static_cast<std::uint8_t*>(cuda::allocate_pinned(static_cast<std::int64_t>(x.size()))));
  std::copy(x.begin(), x.end(), p.get());
  return p;
}

class PageCopyCuda : public CudaTest {
 protected:
  void check(std::int64_t pages, std::int64_t page_bytes, Method method, bool lists_on_host, bool to_gpu) {
    SCOPED_TRACE(testing::Message() << pages << " pages of " << page_bytes << " method " << static_cast<int>(method) << " lists on host "
                                    << lists_on_host << " to GPU " << to_gpu);
    const std::int64_t pool = pages + 5;
    std::mt19937 random(51);
    std::vector<std::uint8_t> source(static_cast<std::size_t>(pool * page_bytes)), target(source.size(), 7);
    for (std::uint8_t& x : source) x = static_cast<std::uint8_t>(random());
    std::vector<std::int32_t> from(static_cast<std::size_t>(pool)), to(from.size());
    std::iota(from.begin(), from.end(), 0), std::iota(to.begin(), to.end(), 0);
    std::shuffle(from.begin(), from.end(), random), std::shuffle(to.begin(), to.end(), random);
    from.resize(static_cast<std::size_t>(pages)), to.resize(from.size());
    if (pages > 3) from[1] = -1, to[3] = -1;
    std::vector<std::uint8_t> expected = target;
    run_cpu(PageCopy{source.data(), expected.data(), from.data(), to.data(), pages, page_bytes});

    const Pinned host = pinned(to_gpu ? source : target);
    const DeviceBuffer<std::uint8_t> device(to_gpu ? target : source);
    const DeviceBuffer<std::int32_t> device_from(from), device_to(to);
    run_cuda(
        PageCopy{to_gpu ? host.get() : device.data(), to_gpu ? device.data() : host.get(), lists_on_host ? from.data() : device_from.data(),
                 lists_on_host ? to.data() : device_to.data(), pages, page_bytes, lists_on_host, method},
        cuda());
    cuda().synchronize();
    const std::vector<std::uint8_t> got =
        to_gpu ? device.to_host(cuda().stream()) : std::vector<std::uint8_t>(host.get(), host.get() + target.size());
    EXPECT_TRUE(got == expected);
  }
};

TEST_F(PageCopyCuda, CopiesListedPagesBothWays) {
  for (const bool to_gpu : {false, true})
    for (const std::int64_t pages : {0, 1, 4, 7, 40})
      for (const std::int64_t page_bytes : {16, 8192, 4112}) {
        check(pages, page_bytes, Method::kKernel, true, to_gpu);
        check(pages, page_bytes, Method::kKernel, false, to_gpu);
        check(pages, page_bytes, Method::kEngine, true, to_gpu);
        check(pages, page_bytes, Method::kAutomatic, true, to_gpu);
        check(pages, page_bytes, Method::kAutomatic, false, to_gpu);
      }
  check(5, 100, Method::kAutomatic, true, true);
  check(200, 8192, Method::kKernel, true, true);  // more than the grid takes at once
}

TEST_F(PageCopyCuda, ChoosesByRuns) {
  std::vector<std::int32_t> from(256), to(256);
  std::iota(from.begin(), from.end(), 3), std::iota(to.begin(), to.end(), 9);
  PageCopy a{nullptr, nullptr, from.data(), to.data(), 256, 8192};
  EXPECT_EQ(chosen_method(a), Method::kEngine);  // one run
  for (std::size_t i = 0; i < 256; i += 2) std::swap(from[i], from[i + 1]);
  EXPECT_EQ(chosen_method(a), Method::kKernel);
  a.page_bytes = 1 << 20;
  EXPECT_EQ(chosen_method(a), Method::kEngine);  // long pages
  a.lists_on_host = false;
  EXPECT_EQ(chosen_method(a), Method::kKernel);
  a.lists_on_host = true, a.page_bytes = 100;
  EXPECT_EQ(chosen_method(a), Method::kEngine);
}

TEST_F(PageCopyCuda, RefusesWhatAMethodCannot) {
  const std::int32_t page = 0;
  EXPECT_THROW(run_cuda(PageCopy{nullptr, nullptr, &page, &page, 1, 24, true, Method::kKernel}, cuda()), CudaError);
  EXPECT_THROW(run_cuda(PageCopy{nullptr, nullptr, &page, &page, 1, 32, false, Method::kEngine}, cuda()), CudaError);
  EXPECT_EQ(bytes(shape(PageCopy{nullptr, nullptr, &page, &page, 3, 8192})), 3 * 8200);
}

}  // namespace
}  // namespace kvlab
