// The bound of VTC (Sheng et al. 2024, arXiv:2401.00588): clients that always have waiting requests differ by at most
// 2 max(w_in L_in, w_out M) in the service they were given, however different their requests are; M: tokens that fit the memory.
#include <algorithm>
#include <array>
#include <cmath>

#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

constexpr std::int32_t kLongestPrompt = 400;
constexpr std::int64_t kBlocks = 400, kBlockTokens = 16;
constexpr double kBound = 2.0 * std::max<double>(kLongestPrompt, 2.0 * kBlocks * kBlockTokens);

// Service of clients 0 and 1: prompts that were admitted, and twice the tokens emitted. All requests of client 0 come before those of
// client 1.
std::array<double, 2> service(const std::string& order, const std::string& parameters) {
  std::array<RequestFacts, 2> facts;
  for (std::int64_t c = 0; c < 2; ++c) facts[static_cast<std::size_t>(c)].client = c;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 3000; ++i) {
    const bool is_first = i < 2000;
    TraceRequest r = request_at(1e-6 * i, is_first ? 20 : kLongestPrompt, is_first ? 200 : 100);
    r.facts = &facts[is_first ? 0 : 1];
    requests.push_back(r);
  }
  SimSetup setup = basic_setup("vllm_v1", "{max_num_seqs: 64}");
  setup.make_order = policy<OrderRegistry>("order", order, parameters);
  setup.memory.num_blocks = kBlocks;
  setup.memory.block_tokens = kBlockTokens;
  setup.stop.after_time = Span(20'000'000);
  const Recorder records = records_of(setup, requests);
  std::array<double, 2> served{}, waiting{};
  for (const RequestRecord& r : records.requests) {
    const auto client = static_cast<std::size_t>(r.facts->client);
    if (r.scheduled == kNever) ++waiting[client];
    if (r.scheduled != kNever) served[client] += r.prompt_tokens + 2.0 * r.output_tokens;
  }
  for (const double left : waiting) EXPECT_GT(left, 0) << order << ": both must have waiting requests to the end";
  return served;
}

TEST(VtcBound, HoldsBetweenUnequalClientsByWeightAndWithPredictedOutputs) {
  for (const auto& [parameters, weight] : {std::pair{"{}", 1}, {"{weights: {1: 3}}", 3}, {"{charge_predicted: true}", 1}}) {
    const auto [first, second] = service("vtc", parameters);
    EXPECT_LE(std::abs(first - second / weight), kBound) << parameters << ": " << first << " against " << second;
    if (weight > 1) {
      EXPECT_GT(second, first);
    }
  }
  const auto [before, after] = service("fcfs", "{}");
  EXPECT_GT(before - after, kBound) << "first come, first served has no such bound";
}

}  // namespace
}  // namespace kvlab::testing
