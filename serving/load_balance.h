#pragma once

#include <cstdint>

namespace kvlab {

// The rank for a replica's next request; ties: the first rank.
enum class LoadBalance : std::uint8_t {
  kVllm,           // least 4 x waiting + running: vLLM 0.19, vllm/v1/engine/core_client.py, DPLBAsyncMPClient
  kRoundRobin,     // ranks in turn
  kTotalRequests,  // least waiting + running
  kTotalTokens,    // fewest tokens in KV blocks and queued prompts, then fewest requests
};

}  // namespace kvlab
