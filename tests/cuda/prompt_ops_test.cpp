#include <functional>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "kernels/select/list_marked_op.h"
#include "kernels/select/mark_blocks/mark_blocks.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/disposal/row_states_op.h"
#include "tests/cuda/parts_fixture.h"

// Operations on a prompt's chunk, in float32: kernels against the CPU version.
namespace kvlab {
namespace {

// Infinities as numbers that can be compared.
std::vector<float> bounded(std::vector<float> x) {
  for (float& number : x) number = std::clamp(number, -1e30F, 1e30F);
  return x;
}

class PromptOpsCuda : public CudaTest {
 protected:
  static constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 16;

  struct Prompt {
    Prompt(std::int64_t tokens, std::int64_t seen, std::uint64_t seed)
        : new_tokens(tokens),
          before(seen),
          q(random_elements<float>(tokens * kHeads * kDim, seed, 2.0F)),
          k(random_elements<float>((tokens + seen) * kKvHeads * kDim, seed + 1)),
          v(random_elements<float>((tokens + seen) * kKvHeads * kDim, seed + 2)),
          device_q(q),
          device_k(k),
          device_v(v) {}
    [[nodiscard]] PromptBlocks blocks(bool on_gpu, std::int32_t block) const {
      return {on_gpu ? device_q.data() : q.data(),
              on_gpu ? device_k.data() : k.data(),
              new_tokens,
              before,
              kHeads,
              kKvHeads,
              kDim,
              2,
              2,
              block};
    }
    std::int64_t new_tokens, before;
    std::vector<float> q, k, v;
    DeviceBuffer<float> device_q, device_k, device_v;
  };

  // Marks by both versions; `set` fills in the kind.
  void expect_same_marks(const Prompt& prompt, std::int32_t block, const std::function<void(MarkBlocks&)>& set) {
    MarkBlocks host{prompt.blocks(false, block)}, device{prompt.blocks(true, block)};
    const PromptBlocks& p = host.prompt;
    Ints marks(static_cast<std::size_t>(p.num_lists() * p.mark_words())), columns(static_cast<std::size_t>(kHeads * p.column_words()));
    const DeviceBuffer<std::int32_t> device_marks(marks), device_columns(columns);
    host.marks = marks.data(), host.column_marks = columns.data();
    device.marks = device_marks.data(), device.column_marks = device_columns.data();
    set(host), set(device);
    run_cpu(host);
    run_cuda(device, cuda());
    EXPECT_EQ(device_marks.to_host(cuda().stream()), marks) << call(host).op;
    EXPECT_EQ(device_columns.to_host(cuda().stream()), columns) << call(host).op;
    EXPECT_NE(std::count(marks.begin(), marks.end(), 0), std::ssize(marks)) << call(host).op << " marks nothing";
    expect_same_lists(p, marks, columns, device_marks, device_columns);
  }

  void expect_same_lists(const PromptBlocks& p, const Ints& marks, const Ints& columns, const DeviceBuffer<std::int32_t>& device_marks,
                         const DeviceBuffer<std::int32_t>& device_columns) {
    PromptBlocks shape = p;
    shape.q = shape.k = nullptr;
    const auto lists = static_cast<std::size_t>(p.num_lists());
    Ints blocks(lists), more(lists), device_blocks(lists), device_more(lists);
    run_cpu(ListMarked{shape, marks.data(), columns.data(), true, blocks.data(), more.data()});
    run_cuda(ListMarked{shape, device_marks.data(), device_columns.data(), true, device_blocks.data(), device_more.data()}, cuda());
    EXPECT_EQ(device_blocks, blocks);
    EXPECT_EQ(device_more, more);
    const Longs first = prefix_sums(blocks), column_first = prefix_sums(more);
    Ints listed(static_cast<std::size_t>(first.back())), listed_columns(static_cast<std::size_t>(column_first.back()));
    const DeviceBuffer<std::int32_t> device_listed(listed), device_listed_columns(listed_columns);
    ListMarked op{shape,   marks.data(), columns.data(),      true,          nullptr,
                  nullptr, first.data(), column_first.data(), listed.data(), listed_columns.data()};
    run_cpu(op);
    op.marks = device_marks.data(), op.column_marks = device_columns.data();
    op.blocks = device_listed.data(), op.columns = device_listed_columns.data();
    run_cuda(op, cuda());
    EXPECT_EQ(device_listed.to_host(cuda().stream()), listed);
    EXPECT_EQ(device_listed_columns.to_host(cuda().stream()), listed_columns);
  }
};

TEST_F(PromptOpsCuda, MarkBlocksEqualsCpuVersion) {
  const Ints first{5, 0, 9, 2}, second{40, 0, 3, 17};
  for (const auto& [tokens, before] : {std::pair<std::int64_t, std::int64_t>{90, 41}, {33, 0}, {1, 7}}) {
    const Prompt prompt(tokens, before, 3);
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
  const DeviceBuffer<std::int32_t> device_index(index);
  for (const std::int32_t from : {0, 4, 9, 10}) {
    Ints expected(3, -1), got(3, -1);
    constexpr auto kFrom = CountScores::Kind::kListedFrom;
    run_cpu(CountScores{3, first.data(), nullptr, kFrom, double(from), expected.data(), 1, nullptr, index.data()});
    run_cuda(CountScores{3, first.data(), nullptr, kFrom, double(from), got.data(), 1, nullptr, device_index.data()}, cuda());
    EXPECT_EQ(got, expected) << from;
  }
}

TEST_F(PromptOpsCuda, ChosenPrefillEqualsCpuVersion) {
  const Prompt prompt(150, 40, 5);
  const Ints index{1, 30, 39, 41, 180, 3, 60, 61, 189}, queries{2, 3};
  const Longs first{0, 5, 9};
  const DeviceBuffer<std::int32_t> device_index(index);
  const auto outputs = static_cast<std::size_t>(150 * kHeads * kDim);
  for (const std::int64_t window : {0, 50}) {
    std::vector<float> out(outputs, 1.0F), log_sum(150 * kHeads, 1.0F);
    const DeviceBuffer<float> device_out(out), device_log_sum(log_sum);
    ChosenPrefill op{prompt.q.data(), prompt.k.data(), prompt.v.data(), out.data(), log_sum.data(), 150, 40, kHeads, kKvHeads, kDim,
                     window};
    op.num_lists = 2, op.first = first.data(), op.index = index.data(), op.tail = 190, op.queries = queries.data();
    run_cpu(op);
    op.q = prompt.device_q.data(), op.k = prompt.device_k.data(), op.v = prompt.device_v.data();
    op.out = device_out.data(), op.log_sum = device_log_sum.data(), op.index = device_index.data();
    run_cuda(op, cuda());
    EXPECT_TRUE(all_near(device_out.to_host(cuda().stream()), out, 1e-5, 1e-5));
    EXPECT_TRUE(all_near(bounded(device_log_sum.to_host(cuda().stream())), bounded(log_sum), 1e-5, 1e-5));
  }
}

TEST_F(PromptOpsCuda, ChosenPrefillCorrectsAsTheCpuVersion) {
  for (const std::int64_t window : {0, 70}) {
    const Prompt prompt(333, 21, 7);
    std::vector<float> out = random_elements<float>(333 * kHeads * kDim, 8);
    const DeviceBuffer<float> device_out(out);
    ChosenPrefill op{prompt.q.data(), prompt.k.data(), prompt.v.data(), out.data(), nullptr, 333, 21, kHeads, kKvHeads, kDim, window};
    op.stride = 16;
    run_cpu(op);
    op.q = prompt.device_q.data(), op.k = prompt.device_k.data(), op.v = prompt.device_v.data(), op.out = device_out.data();
    run_cuda(op, cuda());
    EXPECT_TRUE(all_near(device_out.to_host(cuda().stream()), out, 1e-5, 1e-5));
  }
}

TEST_F(PromptOpsCuda, GatheredRowsEqualCpuVersion) {
  RowsFixture<bf16> rows({.kv_heads = 2, .head_dim = 24, .page_tokens = 8}, {300, 300}, 4);
  std::vector<float> k(300 * 2 * 24), v(k.size());
  const DeviceBuffer<float> device_k(k), device_v(v);
  TokenCopy op{.tokens = {rows.host(), rows.first.data()}, .kind = TokenCopy::Kind::kFloats, .stored = k.data(), .v = v.data()};
  run_cpu(op);
  op.tokens.kv = rows.device(), op.stored = device_k.data(), op.v = device_v.data();
  run_cuda(op, cuda());
  EXPECT_EQ(device_k.to_host(cuda().stream()), k);
  EXPECT_EQ(device_v.to_host(cuda().stream()), v);
  EXPECT_EQ(k[(7 * 2 + 1) * 24 + 3], rows.host().key(1, 7)[3]);
}

TEST_F(PromptOpsCuda, RowStatesEqualCpuVersion) {
  constexpr std::int32_t kMid = 12, kFeatures = 5, kD = 24, kGroup = 3;
  PartsFixture<bf16> parts({.kv_heads = 2, .group = kGroup, .head_dim = kD, .page_tokens = 8}, {9, 70, 1, 0}, {4, 20, 1, 0}, 6);
  const QueriesFixture queries({2, 1}, {80, 9}, 2 * kGroup, kD, 9);
  std::uint64_t seed = 20;
  const auto numbers = [&](std::int64_t n) { return random_elements<float>(n, ++seed, 0.5F); };
  const std::vector<float> a1 = numbers(6 * kD * kMid), a2 = numbers(6 * kMid * kFeatures), b1 = numbers(2 * kD * kMid),
                           b2 = numbers(2 * kMid * kFeatures), c = numbers(2 * kFeatures * kFeatures), s1 = numbers(2 * kFeatures),
                           s2 = numbers(2 * kFeatures);
  const StateMaps maps{kMid, kFeatures, a1.data(), a2.data(), b1.data(), b2.data(), c.data(), s1.data(), s2.data()};
  const Ints line{3, 0, 1, 2}, tokens{kFeatures, kFeatures, 0, 0};
  const Longs first = prefix_sums(tokens);
  std::vector<float> state(static_cast<std::size_t>(4 * maps.state_floats(kD)), 0.25F), weights(2 * kFeatures * 2 * kGroup, 0.0F),
      values(4 * kFeatures * kD, 0.0F);
  const DeviceBuffer<float> device_state(state), device_weights(weights), device_values(values);
  run_cpu(RowStates{parts.host(), maps, line.data(), state.data()});
  run_cuda(RowStates{parts.device(), maps, line.data(), device_state.data()}, cuda());
  EXPECT_TRUE(all_near(device_state.to_host(cuda().stream()), state, 1e-4, 1e-4));
  RowStates read{parts.host(), maps, line.data(), state.data(), RowStates::Kind::kRead, queries.host(), tokens.data(), first.data(), 2};
  read.log_weight = weights.data(), read.values = values.data();
  run_cpu(read);
  read.parts = parts.device(), read.queries = queries.device(), read.state = device_state.data();
  read.log_weight = device_weights.data(), read.values = device_values.data();
  run_cuda(read, cuda());
  EXPECT_TRUE(all_near(bounded(device_weights.to_host(cuda().stream())), bounded(weights), 1e-3, 1e-3));
  EXPECT_TRUE(all_near(device_values.to_host(cuda().stream()), values, 1e-3, 1e-3));
}

}  // namespace
}  // namespace kvlab
