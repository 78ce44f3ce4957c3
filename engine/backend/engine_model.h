#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/policy_cache.h"
#include "traces/attention_trace.h"

namespace kvlab {

struct CacheStep {
  PolicyCache* cache = nullptr;
  std::span<const StepPiece> pieces;
  TokenBatch batch;
  std::span<const std::int32_t> rows;
};

// Arguments and results: CPU memory.
class EngineModel {
 public:
  virtual ~EngineModel() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual std::string_view backend() const = 0;  // cpu or cuda
  [[nodiscard]] virtual ElementType kv_type() const = 0;
  // In CPU memory; null with cuda.
  [[nodiscard]] virtual const Transformer* transformer() const = 0;

  // In the model's memory. Errors as PolicyCache.
  [[nodiscard]] virtual std::unique_ptr<PolicyCache> make_cache(const Recipe& recipe, const PolicyCache::Options& options) const = 0;

  // From begin_step to end_step. Hidden states [rows.size(), hidden_dim] after the last norm.
  virtual std::vector<float> forward(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                                     std::span<const std::int32_t> rows) const = 0;
  [[nodiscard]] std::vector<float> forward(const CacheStep& s) const { return forward(*s.cache, s.pieces, s.batch, s.rows); }
  // forward() of each, bit for bit; of different caches.
  [[nodiscard]] virtual std::vector<std::vector<float>> forward_together(std::span<const CacheStep> steps) const;
  // [n, vocab_size].
  [[nodiscard]] virtual std::vector<float> head(std::span<const float> hidden) const = 0;
  virtual std::vector<float> step(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                                  std::span<const std::int32_t> rows) const = 0;

  // step() of one piece: logits [vocab_size] after its last token. Appends q, k, v and requested tensors to layers [num_layers].
  virtual std::vector<float> recorded_step(PolicyCache& cache, const StepPiece& piece, const TokenBatch& batch,
                                           const RecordOptions& options, std::vector<LayerTensors>& layers) const = 0;
  // W_o [hidden_dim, q_heads * head_dim].
  [[nodiscard]] virtual std::vector<float> output_weights(std::int32_t layer) const = 0;

  struct Draw {
    std::int32_t row = 0;
    float temperature = 0;  // 0: the most likely
    std::uint64_t key = 0;  // sampling_key(seed, request, step)
  };
  // [draws.size()], equal on both backends for equal logits.
  virtual std::vector<std::int32_t> sample_step(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                                                std::span<const Draw> draws) const = 0;

  struct Load {
    std::int32_t sequences = 0, tokens = 0;  // decoding; tokens of the longest
    std::int32_t step_tokens = 0;
    std::int64_t cached_tokens = 0;
  };
  // On a GPU, allocates memory and records decode steps of all sizes. Changes no sequence.
  virtual void prepare(PolicyCache& /*cache*/, const Load& /*most*/) const {}
  // May be empty.
  [[nodiscard]] virtual std::string remark(PolicyCache& /*cache*/) const { return ""; }

  // As in engine/model/record.h.
  [[nodiscard]] virtual PromptTensors run_prompt(std::span<const std::int32_t> ids, const Needs& needs, std::span<const std::string> passes,
                                                 const RecordOptions& options) const = 0;

  // [ids.size(), vocab_size], full cache; chunk_tokens 0: one chunk.
  [[nodiscard]] std::vector<float> logits(std::span<const std::int32_t> ids, std::int32_t chunk_tokens = 0) const;
};

struct GpuOptions {
  bool graphs = false;  // for uncut decode steps
};

// Reads a Hugging Face folder. Throws InputError for bad files, unavailable backends, or too little memory (float32 on the CPU).
std::unique_ptr<EngineModel> make_engine_model(std::string_view backend, const std::string& dir, const GpuOptions& gpu = {});

// For timing.
std::unique_ptr<EngineModel> make_random_model(std::string_view backend, const ModelConfig& config, const GpuOptions& gpu = {});

std::unique_ptr<EngineModel> make_cpu_model(Transformer model);

// Throws InputError if prompts cannot run as steps.
void require_recipe(std::string_view backend, const Recipe& recipe, const Needs& needs);

// Throws InputError if unavailable.
void require_backend(std::string_view backend);

struct PolicyRecord {
  AttentionTrace trace;
  std::vector<OpCall> log;                      // policy operations and decode attention
  std::vector<TierBytes> resident;              // after each step or prefill chunk
  std::vector<std::vector<std::int32_t>> kept;  // [layers * kv_heads] final positions
};

// Runs prefill chunks, the continuation and greedy decoding, with inputs that the recipe observes. Errors of record(), PolicyCache and
// require_recipe().
PolicyRecord record_with_policy(const EngineModel& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options,
                                const Recipe& recipe, const PolicyCache::Options& cache_options = {}, std::int32_t question_begin = -1);

AttentionTrace record(const EngineModel& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options);

}  // namespace kvlab
