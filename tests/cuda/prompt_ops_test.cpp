#include <functional>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "kernels/select/list_marked_op.h"
#include "kernels/select/mark_blocks/mark_blocks.h"
#include "kernels/storage/token_copy_op.h"
#include "tests/cuda/rows_fixture.h"

// Operations on a prompt's chunk, in float32: kernels against the CPU version.
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

}  // namespace
}  // namespace kvlab
