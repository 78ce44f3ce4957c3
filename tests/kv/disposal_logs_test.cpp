#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kv/disposal_fixture.h"

namespace kvlab::test {
namespace {

struct DisposalCase {
  std::string name, parameters;
};
void PrintTo(const DisposalCase& c, std::ostream* out) { *out << c.name << " " << c.parameters; }

// The effect of a disposal on a batch: every second token of head 0 stays, the newest half of head 1.
struct Outcome {
  std::vector<OpCall> log;
  TierBytes resident;
  std::int64_t read_bytes = 0, read_tokens = 0, stored_bytes = 0;
  std::vector<float> numbers;  // K and V of what is left, with data
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

void cut(Disposal& disposal, RandomLayer& layer) {
  const bool data = layer.store.has_data();
  std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(layer.store.num_rows()));
  for (std::int32_t r = 0; r < layer.store.num_rows(); ++r)
    for (std::int32_t i = 0; i < layer.store.len(r); ++i)
      if (r % 2 == 0 ? i % 2 == 0 : 2 * i >= layer.store.len(r)) nth(rows, r).push_back(i);
  const KeptLists lists(rows);
  const Ops::Frame frame(layer.ops);
  LayerStep step = layer.prompt_step(8);
  disposal.observe(step);
  std::vector<float> scores(data ? static_cast<std::size_t>(step.kv.total()) : 0, 1.0F);
  disposal.rank(step, data ? scores.data() : nullptr);
  disposal.dispose(step, data ? lists.kept() : lists.shapes());
  for (std::int32_t r = 0; r < layer.store.num_rows() && disposal.shrinks(); ++r) layer.store.shrink(r, nth(lists.count, r));
}

Outcome run(const DisposalCase& c, RandomLayer& layer) {
  auto disposal = make_part<DisposalRegistry>(c.name, c.parameters);
  disposal->bind(0);
  cut(*disposal, layer);
  cut(*disposal, layer);
  const auto format = make_part<FormatRegistry>("native");
  const Ops::Frame frame(layer.ops);
  LayerStep step = layer.prompt_step(8);
  std::vector<Segment> segments(1);
  segments[0].kv = step.kv;
  disposal->add_segments(step, segments);
  Outcome o;
  for (const Segment& s : segments) {
    o.read_bytes += s.read_bytes;
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) o.read_tokens += s.tokens(r);
  }
  o.log = layer.ops.log();
  o.resident = disposal->resident(layer.model, 0, layer.seqs, step.kv, *format, {1000});
  o.stored_bytes = disposal->take_traffic(layer.model, *format).stored_bytes;
  for (std::int32_t r = 0; r < step.kv.num_rows && layer.store.has_data(); ++r) {
    for (std::int32_t i = 0; i < step.kv.len[r]; ++i)
      for (const float* x : {step.kv.key(r, i), step.kv.value(r, i)}) o.numbers.insert(o.numbers.end(), x, x + step.kv.head_dim);
  }
  return o;
}

class DisposalLog : public ::testing::TestWithParam<DisposalCase> {};

TEST_P(DisposalLog, IsTheSameWithAndWithoutData) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    for (const std::int32_t n : {0, 1, 63, 64, 65}) {
      RandomLayer with({1, 2 * group, 2, 16, 24}, 2, n, 3, 1), without({1, 2 * group, 2, 16, 24}, 2, n, 3, 1, false);
      Outcome a = run(GetParam(), with);
      const Outcome b = run(GetParam(), without);
      EXPECT_FALSE(a.log.empty());
      a.numbers.clear();
      EXPECT_TRUE(a == b) << n << " tokens, group " << group;
    }
  }
}

TEST_P(DisposalLog, GivesNumbersAndTheSameTwice) {
  RandomLayer a({1, 8, 2, 16, 24}, 2, 65, 3, 1), b({1, 8, 2, 16, 24}, 2, 65, 3, 1);
  const Outcome first = run(GetParam(), a);
  EXPECT_TRUE(std::none_of(first.numbers.begin(), first.numbers.end(), [](float x) { return !std::isfinite(x); }));
  EXPECT_TRUE(first == run(GetParam(), b));
}

// A batch fares like its sequences alone.
TEST_P(DisposalLog, SequencesDoNotMix) {
  RandomLayer both({1, 8, 2, 16, 24}, 2, 65, 3, 1), first({1, 8, 2, 16, 24}, 1, 65, 3, 1);
  const std::vector<float> of_both = run(GetParam(), both).numbers, alone = run(GetParam(), first).numbers;
  EXPECT_EQ(std::vector<float>(of_both.begin(), of_both.begin() + static_cast<std::ptrdiff_t>(alone.size())), alone);
}

INSTANTIATE_TEST_SUITE_P(
    All, DisposalLog,
    ::testing::Values(DisposalCase{"drop", "{}"}, DisposalCase{"merge_nearest", "{}"},
                      DisposalCase{"merge_nearest", "{merges: values, weight: norm_share, threshold: fixed, vote: own}"},
                      DisposalCase{"merge_nearest", "{combine: pivot, weight: one, threshold: none}"}, DisposalCase{"merge_position", "{}"},
                      DisposalCase{"merge_nearest", "{merges: values, weight: attention_share, threshold: none}"},
                      DisposalCase{"merge_nearest", "{threshold: none, merges: values}"}, DisposalCase{"merge_runs", "{}"},
                      DisposalCase{"merge_runs", "{order: runs_first}"}, DisposalCase{"merge_window", "{}"},
                      DisposalCase{"merge_window", "{mass: per_query}"}, DisposalCase{"compensation", "{}"}, DisposalCase{"offload", "{}"},
                      DisposalCase{"low_precision", "{}"}, DisposalCase{"low_precision", "{balance: false, bits: 4, group_channels: 5}"}));

// Offloading is dropping, as far as the GPU knows; every byte is on one tier.
TEST(Offload, LeavesWhatDropLeavesAndCountsTheRest) {
  RandomLayer a({1, 8, 2, 16, 24}, 2, 65, 3, 1), b({1, 8, 2, 16, 24}, 2, 65, 3, 1);
  const Outcome offload = run({"offload", "{}"}, a), drop = run({"drop", "{}"}, b);
  EXPECT_EQ(offload.numbers, drop.numbers);
  std::int64_t held = 0;
  for (std::int32_t r = 0; r < 4; ++r) held += a.store.len(r);
  EXPECT_EQ(offload.resident.gpu, 1000);
  EXPECT_EQ(offload.resident.host, (4 * 65 - held) * 2 * 16 * 2);
  EXPECT_EQ(offload.stored_bytes, offload.resident.host);
}

}  // namespace
}  // namespace kvlab::test
