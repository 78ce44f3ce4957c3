#pragma once

#include <span>
#include <vector>

#include "engine/backend/engine_model.h"
#include "traces/attention_trace.h"

namespace kvlab {

struct PolicyRecord {
  AttentionTrace trace;
  std::vector<OpCall> log;                      // policy operations and decode attention
  std::vector<TierBytes> resident;              // after each step or prefill chunk
  std::vector<std::vector<std::int32_t>> kept;  // [layers * kv_heads] final positions
};

// Runs prefill chunks, the continuation and greedy decoding. Also records inputs that the recipe observes. Errors of record(), PolicyCache
// and require_recipe().
PolicyRecord record_with_policy(const EngineModel& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options,
                                const Recipe& recipe, const PolicyCache::Options& cache_options = {}, std::int32_t question_begin = -1);

// For any backend.
AttentionTrace record(const EngineModel& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options);

}  // namespace kvlab
