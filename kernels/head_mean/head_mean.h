#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Scores of each token become their mean over the KV heads of its sequence, so that all heads rank alike. Token i of every head must
// be the same token: rows of a sequence that differ in length are an InternalError. In place.
struct HeadMean {
  KvRows kv;
  float* scores = nullptr;  // [kv.total()]
};
// Each score is read and written once, with one addition.
OpCall call(const HeadMean&);
void run_cpu(const HeadMean&);

}  // namespace kvlab
