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
  std::uint64_t num_sessions = 0;  // distinct
  double duration_s = 0;           // between arrivals
  double rate_per_s = 0;           // gaps / duration
  double gap_cv = 0;               // gaps' standard deviation / mean
  LengthSummary prompt_tokens, output_tokens;
  std::uint64_t num_prompt_blocks = 0;  // whole hashed chunks
  std::uint64_t num_seen_blocks = 0;    // of these, in an earlier request
  std::uint64_t num_distinct_blocks = 0;
  std::int32_t hash_tokens = 0;  // last request with hashes
  std::int32_t concurrency = 0;
  std::string skipped, remark;
};

TraceSummary summarize(TraceSource& source);

void inspect(TraceSource& source, std::ostream& out);

}  // namespace kvlab
