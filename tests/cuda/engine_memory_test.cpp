// Behaviour when the GPU's memory is nearly full, and copies of pages in it.
#include <gmock/gmock.h>

#include "kernels/device/cuda/memory.h"
#include "policies/kv/cache/kv_store.h"
#include "tests/cuda/engine_fixture.h"

namespace kvlab {
namespace {

class EngineMemoryCuda : public CudaTest {
 protected:
  static constexpr std::int32_t kDim = 64, kPage = 16;
  // Writes `value` to all positions of a page, and reads the first one.
  void mark(KvPages& pages, std::int32_t page, std::int32_t value) {
    KvRows kv;
    pages.fill(kv);
    const std::vector<std::int32_t> values(kPage, value);
    TensorMemory(cuda()).from_host(kv.position + std::int64_t{page} * kPage, values.data(), kPage * 4);
  }
  std::int32_t mark_of(KvPages& pages, std::int32_t page) {
    KvRows kv;
    pages.fill(kv);
    return TensorMemory(cuda()).to_host(kv.position + std::int64_t{page} * kPage, 1).front();
  }
};

// Two sequences of three KV heads read the same pages; one of them gets its own.
TEST_F(EngineMemoryCuda, UnsharedPagesHoldTheSame) {
  const ModelShape shape{1, 3, 3, kDim, 3 * kDim};
  const auto pages = std::make_shared<KvPages>(kDim, 1, kPage, TensorMemory(cuda()), ElementType::kBf16);
  pages->reserve(100);
  KvStore store(shape, pages);
  KvStore::Sequence a{{70, 70, 70}, {}};
  for (std::int32_t h = 0; h < 3; ++h) {
    a.pages.emplace_back();
    for (std::int32_t p = 0; p < 6; ++p) {  // the last one waits for tokens
      a.pages.back().push_back(pages->take());
      mark(*pages, a.pages.back().back(), 100 * h + p);
    }
  }
  KvStore::Sequence b = a;
  for (const auto& row : b.pages)
    for (const std::int32_t page : row) pages->share(page);
  store.push(a);
  store.push(b);
#if KVLAB_EMULATED
  const std::int64_t commands = emulated::commands();
  store.unshare(3, 3);
  EXPECT_LE(emulated::commands() - commands, 4 * 3);  // K, V, positions, a statistic: two lists and a launch each, at most
#else
  store.unshare(3, 3);
#endif
  EXPECT_EQ(pages->used_pages(), 36);
  b = store.pop();
  a = store.pop();
  for (std::size_t h = 0; h < 3; ++h)
    for (std::size_t p = 0; p < 6; ++p) {
      EXPECT_NE(a.pages[h][p], b.pages[h][p]);
      EXPECT_FALSE(pages->is_shared(a.pages[h][p]));
      if (p == 5) continue;
      EXPECT_EQ(mark_of(*pages, b.pages[h][p]), static_cast<std::int32_t>(100 * h + p));
    }
}

#if KVLAB_EMULATED

constexpr std::int64_t kPageBytes = 16 * (2 * 64 * 4 + 4);

// A hundred pages in use, and the next one. Without limits half as much again is taken; with less, less; and one, where that is all there
// is room for.
TEST_F(EngineMemoryCuda, PagesGrowByWhatFits) {
  constexpr std::int64_t kVectors = 16 * 64 * 4;  // of a page, K or V
  const auto grown = [&](std::int64_t free) {
    KvPages pages(kDim, 0, kPage, TensorMemory(cuda()));
    pages.reserve(100);
    for (std::int32_t p = 0; p < 100; ++p) mark(pages, pages.take(), p);
    const std::string message = error_with_room(free, [&] { static_cast<void>(pages.take()); });
    for (std::int32_t p = 0; p < 100; ++p) EXPECT_EQ(mark_of(pages, p), p);
    if (message != "no error") {
      EXPECT_THAT(message, testing::HasSubstr("the KV cache does not fit into the GPU's memory: 101 pages"));
      EXPECT_EQ(pages.used_pages(), 100);
    }
    return pages.capacity();
  };
  EXPECT_EQ(grown(kAllMemory), 150);
  EXPECT_EQ(grown(2 * 150 * kVectors), 150);
  EXPECT_EQ(grown(150 * kVectors), 125);  // the new V and the old V beside the new K
  EXPECT_EQ(grown(103 * kVectors), 101);
  EXPECT_EQ(grown(102 * kVectors), 101);
  EXPECT_EQ(grown(100 * kVectors), 100);  // refused
}

TEST_F(EngineMemoryCuda, PinnedMemoryIsNotTheGpus) {
  const std::int64_t before = emulated::used_memory();
  KvPages pages(kDim, 0, kPage, TensorMemory::pinned());
  pages.reserve(100);
  EXPECT_EQ(emulated::used_memory(), before);
  emulated::limit_pinned_memory(100 * kPageBytes);
  EXPECT_THROW(cuda::allocate_pinned(1), PinnedMemoryError);
  EXPECT_THAT(error_of([&] { pages.reserve(200); }),
              testing::AllOf(testing::HasSubstr("swapped KV does not fit into pinned host memory: 200 pages"),
                             testing::HasSubstr("more bytes of pinned host memory were asked for")));
  emulated::limit_pinned_memory(kAllMemory);
}

// From no room to enough: the step is refused; it runs and its graph is left out, which is reported once; all of it fits. The tokens are
// the same.
TEST_F(EngineMemoryCuda, DecodeStepsDoWithoutGraphs) {
  struct Run {
    std::vector<std::int32_t> tokens;
    std::string refused, remark;
    std::int64_t graphs = 0;
  };
  const auto run = [&](std::int64_t room) {
    Run r;
    const auto model = make_device_model(tiny_config(), tiny_weights(tiny_config()), {true}, ElementType::kBf16);
    const std::unique_ptr<PolicyCache> cache = model->make_cache(load_recipe("full"), {});
    EngineSequence s = sequence_of(0, tiny_ids(20, 3), 20);
    cache->start(s);
    const auto step = [&](std::int32_t n) {
      const PieceBatch batch({{&s, n}});
      const std::vector<EngineModel::Draw> draws{{n - 1, 0, 0}};
      s.ids.push_back(model->sample_step(*cache, batch.pieces, batch.tokens(), draws).front());
      r.tokens.push_back(s.ids.back());
    };
    step(20);
    const std::int64_t graphs = emulated::recorded_graphs();
    r.refused = error_with_room(room, [&] {
      for (int i = 0; i < 3; ++i) step(1);
    });
    r.graphs = emulated::recorded_graphs() - graphs, r.remark = model->remark(*cache);
    return r;
  };
  const Run free = run(kAllMemory / 2);
  EXPECT_EQ(free.remark, "");
  EXPECT_EQ(free.graphs, 1);
  int refused = 0, without = 0;
  for (std::int64_t room = 0;; room += 8 << 10) {
    const Run r = run(room);
    if (r.refused != "no error") {
      EXPECT_EQ(without, 0) << room;
      ++refused;
      continue;
    }
    EXPECT_EQ(r.tokens, free.tokens);
    if (r.remark.empty()) break;
    ++without;
    EXPECT_EQ(r.graphs, 0);
    EXPECT_THAT(r.remark, testing::AllOf(testing::HasSubstr("0 decode steps run as graphs; the GPU had no memory for that of 1 sequences"),
                                         testing::HasSubstr("65536 more bytes were asked for")));
  }
  EXPECT_GE(refused, 1);
  EXPECT_GE(without, 4);
}

#endif

}  // namespace
}  // namespace kvlab
