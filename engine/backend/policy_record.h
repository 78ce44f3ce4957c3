#pragma once

#include <span>
#include <vector>

#include "engine/backend/engine_model.h"
#include "traces/attention_trace.h"

namespace kvlab {

// The operations of a policy in the engine, and the attention that it acted on: queries, keys and values as computed over the cut cache.
struct PolicyRecord {
  AttentionTrace trace;
  std::vector<OpCall> log;                      // of the policy's operations, and of attention in decode
  std::vector<TierBytes> resident;              // after each step, prefill chunks included
  std::vector<std::vector<std::int32_t>> kept;  // [layers * kv_heads] positions held at the end
};

// Runs a model with a policy and records what it sees: prefill in chunks, then the continuation and decode_tokens greedy ones, one at a
// time. Tensors that the recipe observes are recorded whether the options ask for them or not. A replay of the trace with the same recipe
// acts in the same way. Errors: record()'s, PolicyCache's, require_recipe()'s.
PolicyRecord record_with_policy(const EngineModel& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options,
                                const Recipe& recipe, const PolicyCache::Options& cache_options = {}, std::int32_t question_begin = -1);

// The result of record() on the CPU (engine/model/record.h), for a model on any backend.
AttentionTrace record(const EngineModel& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options);

}  // namespace kvlab
