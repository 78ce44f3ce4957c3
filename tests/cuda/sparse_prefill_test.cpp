#include "kernels/attention/sparse_prefill/sparse_prefill.h"

#include "tests/cuda/paged_prompts.h"
#include "tests/drawn_sparse_keys.h"

namespace kvlab {
namespace {

// Lists of several prompts, one after another, in host memory and in device memory.
template <class T>
struct SparsePrompts {
  SparsePrompts(const PagedPrompts<T>& p, std::int32_t block, const DrawnSparseKeys::Chances& chances, std::uint64_t seed)
      : all({0, 0, 0, block}, chances, seed) {
    for (std::int32_t i = 0; i < p.prompts(); ++i) {
      const auto s = static_cast<std::size_t>(i);
      of_prompt.emplace_back(DrawnSparseKeys::Shape{p.query_first[s + 1] - p.query_first[s], p.kv_before[p.row_of(i, 0)], p.q_heads, block},
                             chances, seed + s);
      all.append(of_prompt.back());
    }
    block_first = DeviceBuffer<std::int64_t>(all.block_first), column_first = DeviceBuffer<std::int64_t>(all.column_first);
    blocks = DeviceBuffer<std::int32_t>(all.blocks), columns = DeviceBuffer<std::int32_t>(all.columns);
  }
  [[nodiscard]] SparseKeys on_device() const {
    const bool has_columns = !all.columns.empty();
    return {all.block, block_first.data(), blocks.data(), has_columns ? column_first.data() : nullptr,
            has_columns ? columns.data() : nullptr};
  }

  std::vector<DrawnSparseKeys> of_prompt;
  DrawnSparseKeys all;
  DeviceBuffer<std::int64_t> block_first, column_first;
  DeviceBuffer<std::int32_t> blocks, columns;
};

struct SparseOptions {
  std::int32_t block = 64, window = 0;
  DrawnSparseKeys::Chances chances{.block = 0.5};
  int tuning = -1;
};

class SparsePrefillCuda : public PrefillTest {
 protected:
  template <class T>
  void check(const PagedPrompts<T>& p, const SparseOptions& options, std::uint64_t seed) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << ", " << p.q_heads << " on " << p.kv_heads << " heads of " << p.head_dim
                                    << ", block " << options.block << ", window " << options.window << ", tuning " << options.tuning);
    const DevicePrompts<T> device(p);
    const SparsePrompts<T> lists(p, options.block, options.chances, seed);
    DeviceSparsePrefill a{device.prefill(), lists.on_device()};
    a.prefill.window = options.window, a.prefill.tuning = options.tuning;
    const auto sees_listed = [&](std::int32_t prompt, std::int32_t h, std::int32_t t, std::int32_t i, std::int32_t end) {
      const DrawnSparseKeys& of = lists.of_prompt[static_cast<std::size_t>(prompt)];
      return sees(of.keys(), of.list_of(h, t), i, end - 1, options.window);
    };
    check_attended(p, a, a.prefill, attended(p, a.prefill.scale, true, sees_listed));
  }
};

class SparsePrefillVariants : public SparsePrefillCuda, public testing::WithParamInterface<int> {};

// Three prompts: parts of query blocks at both ends, one token, less than a block.
TEST_P(SparsePrefillVariants, EqualsTheFormula) {
  for (const std::int32_t head_dim : {64, 128}) {
    if (GetParam() >= static_cast<int>(sparse_prefill_variants(head_dim).size())) continue;
    SparseOptions options{.chances = {.block = 0.6, .column = 0.1}, .tuning = GetParam()};
    check(PagedPrompts<bf16>(4, 2, head_dim, 16, {140, 1, 9}, {5, 5, 100, 100, 64, 64}, 1), options, 1);
    options.block = 128;
    check(PagedPrompts<f16>(2, 1, head_dim, 48, {70}, {200}, 2), options, 2);
  }
}
INSTANTIATE_TEST_SUITE_P(Tiles, SparsePrefillVariants, testing::Range(0, 3));

TEST_F(SparsePrefillCuda, WideHeads) {
  check(PagedPrompts<bf16>(2, 1, 256, 16, {34, 3}, {40, 64}, 5), {.chances = {.block = 0.7, .column = 0.1}}, 5);
}

// Blocks smaller than a tile of rows, no multiple of it, and as large as several; pages larger and smaller than blocks.
TEST_F(SparsePrefillCuda, TakesBlocksOfAnySize) {
  for (const std::int32_t block : {16, 48, 80, 192})
    check(PagedPrompts<f16>(2, 1, 64, 32, {150}, {block == 48 ? 100 : 33}, 10), {.block = block, .chances = {.block = 0.5, .column = 0.05}},
          10);
  check(PagedPrompts<bf16>(2, 2, 64, 16, {0, 5, 0}, {7, 7, 63, 63, 0, 0}, 11), {.block = 32}, 11);
}

TEST_F(SparsePrefillCuda, WindowHidesOlderKeys) {
  for (const std::int32_t window : {1, 63, 64, 150, 1000})
    check(PagedPrompts<f16>(2, 1, 64, 16, {90}, {130}, 30), {.window = window, .chances = {.block = 0.8, .column = 0.2}}, 30);
  check(PagedPrompts<bf16>(1, 1, 64, 16, {140}, {130}, 31), {.block = 128, .window = 70, .chances = {.block = 1.0}}, 31);
}

TEST_F(SparsePrefillCuda, ListsOfAllBlocksAndOfNone) {
  check(PagedPrompts<bf16>(2, 1, 64, 16, {70}, {90}, 40), {.chances = {.block = 1.0}}, 40);
  check(PagedPrompts<bf16>(2, 1, 64, 16, {70}, {90}, 41), {.chances = {.block = 0.0, .own = 0.0}}, 41);
  check(PagedPrompts<bf16>(2, 1, 64, 16, {70}, {90}, 42), {.chances = {.block = 0.0, .own = 0.0, .column = 0.03}}, 42);
  check(PagedPrompts<bf16>(2, 1, 64, 16, {70}, {90}, 43), {.chances = {.block = 0.3, .own = 0.5, .column = 0.1, .later = 0.5}}, 43);
}

// A block holds 256 units of 16 keys, or 256 columns, at a time.
TEST_F(SparsePrefillCuda, LongListsAreReadInPieces) {
  check(PagedPrompts<f16>(1, 1, 64, 16, {2}, {4700}, 60), {.chances = {.block = 0.95, .column = 0.9}}, 60);
  check(PagedPrompts<f16>(1, 1, 64, 16, {2}, {1300}, 61), {.chances = {.block = 0.2, .column = 0.5}}, 61);
}

// Float32 operands, one after another as the contract has them, against the CPU's version.
TEST_F(SparsePrefillCuda, RoundedOperandsEqualTheCpuVersion) {
  const DrawnSparseKeys lists({60, 70, 4, 64}, {.block = 0.5, .column = 0.2}, 70);
  const std::vector<float> q = floats(random_elements<f16>(60 * 4 * 64, 71)), k = floats(random_elements<f16>(130 * 2 * 64, 72)),
                           v = floats(random_elements<f16>(130 * 2 * 64, 73));
  std::vector<float> expected(q.size()), expected_log_sum(60 * 4);
  SparsePrefill a{q.data(), k.data(), v.data(), expected.data(), expected_log_sum.data(), 60, 70, 4, 2, 64, 0.125F, 0, lists.keys()};
  run_cpu(a);
  const DeviceBuffer<float> device_q(q), device_k(k), device_v(v), out(60 * 4 * 64), log_sum(60 * 4);
  const DeviceBuffer<std::int32_t> blocks(lists.blocks), columns(lists.columns);
  a.q = device_q.data(), a.k = device_k.data(), a.v = device_v.data(), a.out = out.data(), a.log_sum = log_sum.data();
  a.keys.blocks = blocks.data(), a.keys.columns = columns.data();
  Ops ops(cuda());
  ops(a);
  EXPECT_TRUE(all_near(out.to_host(cuda().stream()), expected, kTolerance<f16>, kTolerance<f16>));
  EXPECT_TRUE(all_near(log_sum.to_host(cuda().stream()), expected_log_sum, 1e-4, 1e-4));
}

// A NaN in a block that is not listed does not reach the result.
TEST_F(SparsePrefillCuda, KeysThatAreNotListedAreNotRead) {
  PagedPrompts<bf16> p(1, 1, 64, 16, {30}, {98}, 80);
  for (std::int32_t i = 0; i < 64; ++i)
    for (std::size_t c = 0; c < 64; ++c) p.k[p.slot(0, i) * 64 + c] = p.v[p.slot(0, i) * 64 + c] = from_float<bf16>(NAN);
  check(p, {.chances = {.block = 0.0}}, 80);
}

TEST_F(SparsePrefillCuda, RefusesWhatItDoesNotTake) {
  const PagedPrompts<bf16> p(2, 1, 64, 16, {4}, {0}, 95);
  const DevicePrompts<bf16> device(p);
  const SparsePrompts<bf16> lists(p, 16, {}, 95);
  const DeviceBuffer<bf16> out(4 * 128);
  const auto refuses = [&](auto change, const char* word) {
    DeviceSparsePrefill a{device.prefill(), lists.on_device()};
    a.prefill.out = out.data();
    change(a);
    EXPECT_THAT(cuda_error_of([&] { run_cuda(a, cuda()); }), testing::HasSubstr(word));
  };
  refuses([](DeviceSparsePrefill& a) { a.keys.block = 40; }, "blocks of 40 tokens");
  refuses([](DeviceSparsePrefill& a) { a.prefill.head_dim = 96; }, "head_dim 96");
  refuses([](DeviceSparsePrefill& a) { a.prefill.causal = false; }, "outside of the cache");
  refuses([](DeviceSparsePrefill& a) { a.prefill.splits = 2; }, "splits");
  refuses([](DeviceSparsePrefill& a) { a.prefill.tuning = 9; }, "tuning 9");
  DeviceSparsePrefill empty{device.prefill(), lists.on_device()};
  empty.prefill.tokens = 0;
  run_cuda(empty, cuda());
}

}  // namespace
}  // namespace kvlab
