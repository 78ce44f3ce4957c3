// VTC against sequences derived by hand. One request runs at a time unless a test says otherwise.
#include "tests/error_of.h"
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

RequestFacts client(std::int64_t number) {
  RequestFacts facts;
  facts.client = number;
  return facts;
}

// Prompt tokens cost 1, output tokens 2. Clients 7 and 8: after request 0 client 7 has paid 6, so client 8 goes next; then both have paid
// 6, and client 7 came first.
TEST(VtcOrder, TheClientWithTheLeastServiceGoesFirst) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "vtc"});
  for (const int number : {7, 7, 8}) d.with(client(number)).arrive(4, 1);
  EXPECT_TRUE(d.steps_are({"0:4; waiting 2 1", "2:4", "1:4"}));
}

// Client 8 arrives when client 7 has paid 12 and has a request waiting. Lifted to 12 it takes turns with client 7; it has no credit for the
// time before.
TEST(VtcOrder, AClientThatWasAwayIsLifted) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "vtc"});
  for (int i = 0; i < 4; ++i) d.with(client(7)).arrive(4, 1);
  EXPECT_TRUE(d.steps_are({"? *2"}));
  for (int i = 0; i < 2; ++i) d.with(client(8)).arrive(4, 1);
  EXPECT_TRUE(d.steps_are({"2:4", "4:4", "3:4", "5:4"}));
}

// The output charged at admission: 10 by default estimate. It is taken back when the request ends after 1.
TEST(VtcOrder, ChargesThePredictionAndTakesItBack) {
  ReplicaDriver d(
      "vllm_v1", "{max_num_seqs: 2}",
      Memory{.order = "vtc", .order_params = "{charge_predicted: true}", .predictor = "history", .predictor_params = "{first_tokens: 10}"});
  d.with(client(1)).arrive(4, 2);
  d.with(client(1)).arrive(4, 2);
  d.with(client(2)).arrive(20, 2);
  d.with(client(2)).arrive(4, 2);
  EXPECT_TRUE(d.steps_are({
      "0:4 2:20; waiting 1 3",  // 24 and 40 charged at admission
      "0:1 2:1; waiting 1 3"    // 8 and 24 after both ended
  }));
}

// Client 7 has weight 2: it pays 3 for a request where client 8 pays 6. After requests 0 and 5 it has paid 3 against 6, and so on; at
// equal counters the client that came first goes first.
TEST(VtcOrder, AClientOfWeightTwoGetsTwiceAsMuch) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "vtc", .order_params = "{weights: {7: 2}}"});
  for (const int number : {7, 7, 7, 7, 7, 8, 8, 8}) d.with(client(number)).arrive(4, 1);
  EXPECT_TRUE(d.steps_are({"0:4", "5:4", "1:4", "2:4", "6:4", "3:4", "4:4", "7:4"}));
}

// Client 7's queue is empty while its request 0 runs. Client 8 comes when three tokens are out, and is lifted to 4 + 6; after request 1 it
// has paid 16, more than client 7's 12.
TEST(VtcOrder, WithoutWaitingClientsTheLastOneIsTheMeasure) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "vtc"});
  d.with(client(7)).arrive(4, 4);
  for (int i = 0; i < 3; ++i) d.step();
  for (const int number : {8, 8, 7}) d.with(client(number)).arrive(4, 1);
  EXPECT_TRUE(d.steps_are({"0:1", "1:4", "3:4", "2:4"}));
}

// One block is free. The head of client 2, whose turn it is, needs three; client 3's request of one block has to wait all the same.
TEST(VtcOrder, AdmissionStopsAtTheFirstHeadThatDoesNotFit) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4, .order = "vtc"});
  d.with(client(1)).arrive(8, 3);
  d.step();
  d.with(client(2)).arrive(12, 1);
  d.with(client(3)).arrive(4, 1);
  EXPECT_TRUE(d.steps_are({"0:1; free 1; waiting 1 2"}));
}

TEST(VtcOrder, RefusesWeightsOfTokensBesideTheProfiledCost) {
  const auto error = [](const std::string& params) { return error_of([&] { ReplicaDriver::make<Order>("vtc", params); }); };
  EXPECT_NE(error("{cost: profiled, input_weight: 2}").find("'input_weight' and 'output_weight' mean nothing"), std::string::npos);
  EXPECT_NE(error("{weights: {7: 0}}").find("'7' = 0 is outside"), std::string::npos) << error("{weights: {7: 0}}");
}

}  // namespace
}  // namespace kvlab
