// Orders that learn the lengths of classes, against sequences derived by hand. One request runs at a time.
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

RequestFacts of_class(const char* name) {
  RequestFacts facts;
  facts.request_class = ClassName(name);
  return facts;
}

// A job of each class in turn while nothing is known.
TEST(LearnedTypesOrder, ClassesTakeTurnsAtFirst) {
  for (const char* order : {"etc_u", "ucb_u"}) {
    ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = order});
    for (const char* name : {"a", "a", "b", "b"}) d.with(of_class(name)).arrive(4, 1);
    EXPECT_TRUE(d.steps_are({"0:4", "2:4"})) << order;
  }
}

// Class a has outputs of 8 tokens, class b of 1. Once one of each has ended, the lower bound of b is the lower one.
TEST(LearnedTypesOrder, TheShorterClassGoesFirstOnceItIsKnown) {
  ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = "ucb_u"});
  for (int i = 0; i < 3; ++i) d.with(of_class("a")).arrive(4, 8);
  for (int i = 0; i < 3; ++i) d.with(of_class("b")).arrive(4, 1);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(d.step().substr(0, 1), "0");
  for (const char* next : {"3:4", "4:4", "5:4", "1:4"}) EXPECT_EQ(d.step(), next);
}

// Turns of 2 tokens: request 0 of the long class gives way after two, request 1 of the short class ends in its turn.
TEST(LearnedTypesOrder, TurnsEndAfterTheQuantum) {
  for (const char* order : {"etc_rr", "ucb_rr"}) {
    ReplicaDriver d("vllm_v1", kOneAtATime, Memory{.order = order, .order_params = "{quantum_steps: 2, preemption: recompute}"});
    d.with(of_class("a")).arrive(4, 50);
    d.with(of_class("b")).arrive(4, 2);
    EXPECT_TRUE(d.steps_are({"0:4", "0:1", "1:4", "1:1", "0:6; preemptions 1"})) << order;
  }
}

}  // namespace
}  // namespace kvlab
