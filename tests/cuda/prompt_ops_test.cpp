// Operations on a prompt's chunk, in float32: kernels against the CPU version.
#include <functional>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/select/list_marked_op.h"
#include "kernels/select/mark_blocks/mark_blocks.h"
#include "kernels/storage/token_copy_op.h"
#include "tests/cuda/paged_prompts.h"
#include "tests/cuda/rows_fixture.h"
#include "tests/drawn_sparse_keys.h"

namespace kvlab {
namespace {

class PromptOpsCuda : public CudaTest {
 protected:
  static constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 16;

  struct Prompt {
    Prompt(std::int64_t tokens, std::int64_t seen, std::uint64_t seed)
        : new_tokens(tokens),
          before(seen),
          q(random_elements<float>(tokens * kHeads * kDim, seed, 2.0F)),
          k(random_elements<float>((tokens + seen) * kKvHeads * kDim, seed + 1)),
          v(random_elements<float>((tokens + seen) * kKvHeads * kDim, seed + 2)) {}
    PromptBlocks blocks(bool gpu, std::int32_t block) {
      return {q.at(gpu), k.at(gpu), new_tokens, before, kHeads, kKvHeads, kDim, 2, 2, block};
    }
    std::int64_t new_tokens, before;
    Twice<float> q, k, v;
  };

  // Marks by both versions; `set` fills in the kind.
  void expect_same_marks(Prompt& prompt, std::int32_t block, const std::function<void(MarkBlocks&)>& set) {
    const PromptBlocks p = prompt.blocks(false, block);
    Twice<std::int32_t> marks(Ints(static_cast<std::size_t>(p.num_lists() * p.mark_words()))),
        columns(Ints(static_cast<std::size_t>(kHeads * p.column_words())));
    const auto op = [&](bool gpu) {
      MarkBlocks mark{prompt.blocks(gpu, block)};
      mark.marks = marks.at(gpu), mark.column_marks = columns.at(gpu);
      set(mark);
      return mark;
    };
    run_both(op);
    SCOPED_TRACE(call(op(false)).op);
    EXPECT_TRUE(same(marks, columns));
    EXPECT_NE(std::count(marks.host().begin(), marks.host().end(), 0), std::ssize(marks.host())) << "it marks nothing";
    expect_same_lists(p, marks, columns);
  }

  void expect_same_lists(const PromptBlocks& p, Twice<std::int32_t>& marks, Twice<std::int32_t>& columns) {
    PromptBlocks shape = p;
    shape.q = shape.k = nullptr;
    const Ints zeros(static_cast<std::size_t>(p.num_lists()));
    Ints blocks[2] = {zeros, zeros}, more[2] = {zeros, zeros};
    run_both([&](bool gpu) { return ListMarked{shape, marks.at(gpu), columns.at(gpu), true, blocks[gpu].data(), more[gpu].data()}; });
    EXPECT_EQ(blocks[1], blocks[0]);
    EXPECT_EQ(more[1], more[0]);
    const Longs first = prefix_sums(blocks[0]), column_first = prefix_sums(more[0]);
    Twice<std::int32_t> listed(Ints(static_cast<std::size_t>(first.back()))),
        listed_columns(Ints(static_cast<std::size_t>(column_first.back())));
    run_both([&](bool gpu) {
      return ListMarked{shape,   marks.at(gpu), columns.at(gpu),     true,           nullptr,
                        nullptr, first.data(),  column_first.data(), listed.at(gpu), listed_columns.at(gpu)};
    });
    EXPECT_TRUE(same(listed, listed_columns));
  }
};

TEST_F(PromptOpsCuda, MarkBlocksEqualsCpuVersion) {
  const Ints first{5, 0, 9, 2}, second{40, 0, 3, 17};
  for (const auto& [tokens, before] : {std::pair<std::int64_t, std::int64_t>{90, 41}, {33, 0}, {1, 7}}) {
    Prompt prompt(tokens, before, 3);
    for (const std::int32_t block : {16, 32}) {
      using Kind = MarkBlocks::Kind;
      for (const Kind kind : {Kind::kLocal, Kind::kVerticalSlash}) {
        expect_same_marks(prompt, block, [&](MarkBlocks& op) {
          op.kind = kind, op.first = first.data(), op.second = second.data();
          op.window_queries = 20, op.first_columns = 2, op.near_diagonals = 3;
        });
      }
      expect_same_marks(prompt, block, [&](MarkBlocks& op) { op.kind = Kind::kPooled, op.first = first.data(); });
      for (const double tau : {0.0, 1.0})
        expect_same_marks(prompt, block, [&](MarkBlocks& op) { op.kind = Kind::kFlex, op.share = 0.8, op.tau = tau, op.min_blocks = 2; });
      for (const double share : {0.6, 1.0})
        expect_same_marks(prompt, block, [&](MarkBlocks& op) { op.kind = Kind::kAntidiagonal, op.share = share, op.stride = 8; });
    }
  }
}

TEST_F(PromptOpsCuda, CountScoresOfListsEqualsCpuVersion) {
  const Ints index{1, 4, 9, 2, 3, 5, 8};
  const Longs first{0, 3, 3, 7};
  Twice<std::int32_t> listed(index);
  for (const std::int32_t from : {0, 4, 9, 10}) {
    const auto counts = on_host(Ints(3, -1), [&](bool gpu, std::int32_t* out) {
      return CountScores{3, first.data(), nullptr, CountScores::Kind::kListedFrom, double(from), out, 1, nullptr, listed.at(gpu)};
    });
    EXPECT_TRUE(equal(counts)) << from;
  }
}

TEST_F(PromptOpsCuda, ChosenPrefillEqualsCpuVersion) {
  Prompt prompt(150, 40, 5);
  Twice<std::int32_t> index(Ints{1, 30, 39, 41, 180, 3, 60, 61, 189});
  const Ints queries{2, 3};
  const Longs first{0, 5, 9};
  for (const std::int64_t window : {0, 50}) {
    Twice<float> out(std::vector<float>(150 * kHeads * kDim, 1.0F)), log_sum(std::vector<float>(150 * kHeads, 1.0F));
    run_both([&](bool gpu) {
      ChosenPrefill op{
          prompt.q.at(gpu), prompt.k.at(gpu), prompt.v.at(gpu), out.at(gpu), log_sum.at(gpu), 150, 40, kHeads, kKvHeads, kDim, window};
      op.num_lists = 2, op.first = first.data(), op.index = index.at(gpu), op.tail = 190, op.queries = queries.data();
      return op;
    });
    EXPECT_TRUE(all_near(out.device(cuda()), out.host(), 1e-5, 1e-5));
    EXPECT_TRUE(all_near(log_sum.device(cuda()), log_sum.host(), 1e-5, 1e-5, true));
  }
}

TEST_F(PromptOpsCuda, ChosenPrefillCorrectsAsTheCpuVersion) {
  for (const std::int64_t window : {0, 70}) {
    Prompt prompt(333, 21, 7);
    Twice<float> out = normals(333 * kHeads * kDim, 8);
    run_both([&](bool gpu) {
      ChosenPrefill op{prompt.q.at(gpu), prompt.k.at(gpu), prompt.v.at(gpu), out.at(gpu), nullptr, 333, 21, kHeads, kKvHeads, kDim, window};
      op.stride = 16;
      return op;
    });
    EXPECT_TRUE(all_near(out.device(cuda()), out.host(), 1e-5, 1e-5));
  }
}

TEST_F(PromptOpsCuda, GatheredRowsEqualCpuVersion) {
  RowsFixture<bf16> rows({.kv_heads = 2, .head_dim = 24, .page_tokens = 8}, {300, 300}, 4);
  const std::vector<float> zeros(300 * 2 * 24);
  Twice<float> k(zeros), v(zeros);
  run_both([&](bool gpu) {
    const ListedTokens all{rows.at(gpu), rows.first.data()};
    return TokenCopy{.tokens = all, .kind = TokenCopy::Kind::kFloats, .stored = k.at(gpu), .v = v.at(gpu)};
  });
  EXPECT_TRUE(same(k, v));
  EXPECT_EQ(k.host()[(7 * 2 + 1) * 24 + 3], rows.host().key(1, 7)[3]);
}

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

TEST_F(SparsePrefillCuda, EqualsTheFormula) {
  check(PagedPrompts<bf16>(2, 1, 256, 16, {34, 3}, {40, 64}, 5), {.chances = {.block = 0.7, .column = 0.1}}, 5);
  // Blocks smaller than a tile of rows, no multiple of it, and as large as several; pages larger and smaller than blocks.
  for (const std::int32_t block : {16, 48, 80, 192})
    check(PagedPrompts<f16>(2, 1, 64, 32, {150}, {block == 48 ? 100 : 33}, 10), {.block = block, .chances = {.block = 0.5, .column = 0.05}},
          10);
  check(PagedPrompts<bf16>(2, 2, 64, 16, {0, 5, 0}, {7, 7, 63, 63, 0, 0}, 11), {.block = 32}, 11);
  for (const std::int32_t window : {1, 63, 64, 150, 1000})
    check(PagedPrompts<f16>(2, 1, 64, 16, {90}, {130}, 30), {.window = window, .chances = {.block = 0.8, .column = 0.2}}, 30);
  check(PagedPrompts<bf16>(1, 1, 64, 16, {140}, {130}, 31), {.block = 128, .window = 70, .chances = {.block = 1.0}}, 31);
  check(PagedPrompts<bf16>(2, 1, 64, 16, {70}, {90}, 40), {.chances = {.block = 1.0}}, 40);
  check(PagedPrompts<bf16>(2, 1, 64, 16, {70}, {90}, 41), {.chances = {.block = 0.0, .own = 0.0}}, 41);
  check(PagedPrompts<bf16>(2, 1, 64, 16, {70}, {90}, 42), {.chances = {.block = 0.0, .own = 0.0, .column = 0.03}}, 42);
  check(PagedPrompts<bf16>(2, 1, 64, 16, {70}, {90}, 43), {.chances = {.block = 0.3, .own = 0.5, .column = 0.1, .later = 0.5}}, 43);
  // A block holds 256 units of 16 keys, or 256 columns, at a time.
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
