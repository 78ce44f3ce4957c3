#pragma once

#include <cstdint>

namespace kvlab {

// Which rank of a replica with data parallelism takes its next request; of equal ranks the first.
enum class LoadBalance : std::uint8_t {
  kVllm,           // the least 4 x waiting + running: vLLM 0.19, vllm/v1/engine/core_client.py, DPLBAsyncMPClient
  kRoundRobin,     // ranks in turn
  kTotalRequests,  // the least waiting + running
  kTotalTokens,    // the fewest tokens in KV blocks and of queued prompts; of equal ranks the one with fewer requests
};

}  // namespace kvlab
