#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "traces/trace.h"

namespace kvlab {

struct LengthSummary {
  double mean = 0;
  std::int32_t min = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

struct TraceSummary {
  std::uint64_t num_requests = 0;
  std::uint64_t num_follow_ups = 0;
  std::uint64_t num_sessions = 0;  // different session numbers
  double duration_s = 0;           // first to last arrival
  double rate_per_s = 0;           // gaps / duration
  double gap_cv = 0;               // standard deviation of the gaps between arrivals / their mean
  LengthSummary prompt_tokens, output_tokens;
  std::uint64_t num_prompt_blocks = 0;  // whole chunks of prompts that the trace hashes
  std::uint64_t num_seen_blocks = 0;    // of these, hashed by an earlier request too: the hits of an endless cache
  std::uint64_t num_distinct_blocks = 0;
  std::int32_t hash_tokens = 0;  // of the last request that has hashes
  std::int32_t concurrency = 0;
  std::string skipped, remark;
};

// Reads `source` to its end. Memory: a count per different length, a set of different blocks and sessions.
TraceSummary summarize(TraceSource& source);

// The summary as text for people.
void inspect(TraceSource& source, std::ostream& out);

}  // namespace kvlab
