#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/policy_cache.h"

namespace kvlab {

// A language model on one backend, with the operations that applications run on it. Arguments and results are in CPU memory, whatever
// memory the model computes in.
class EngineModel {
 public:
  virtual ~EngineModel() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual std::string_view backend() const = 0;  // cpu or cuda
  [[nodiscard]] virtual ElementType kv_type() const = 0;       // of keys and values in its caches
  // The same model in CPU memory, for operations that run only there; null with cuda.
  [[nodiscard]] virtual const Transformer* transformer() const = 0;

  // A cache whose keys and values are in the memory where the model computes. Errors as PolicyCache's.
  [[nodiscard]] virtual std::unique_ptr<PolicyCache> make_cache(const Recipe& recipe, const PolicyCache::Options& options) const = 0;

  // One step of the pieces, whose tokens are the batch: begin_step, the forward pass, end_step. Returns hidden states [rows.size(),
  // hidden_dim] of these tokens of the batch, after the last norm.
  virtual std::vector<float> forward(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                                     std::span<const std::int32_t> rows) const = 0;
  // Logits [n, vocab_size] of such hidden states [n, hidden_dim].
  [[nodiscard]] virtual std::vector<float> head(std::span<const float> hidden) const = 0;
  // Both at once.
  virtual std::vector<float> step(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                                  std::span<const std::int32_t> rows) const = 0;

  // step() of one piece; returns logits [vocab_size] after its last token. q, k and v of its attention layers, and the other tensors that
  // the options name, are appended to layers [num_layers].
  virtual std::vector<float> recorded_step(PolicyCache& cache, const StepPiece& piece, const TokenBatch& batch,
                                           const RecordOptions& options, std::vector<LayerTensors>& layers) const = 0;
  // W_o of a layer, [hidden_dim, q_heads * head_dim].
  [[nodiscard]] virtual std::vector<float> output_weights(std::int32_t layer) const = 0;

  // A token to be drawn after one of the batch.
  struct Draw {
    std::int32_t row = 0;
    float temperature = 0;  // 0: the most likely
    std::uint64_t key = 0;  // sampling_key(seed, request, step)
  };
  // The same step; returns the drawn tokens [draws.size()] once the step is done. Both backends draw the same token from the same logits.
  virtual std::vector<std::int32_t> sample_step(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                                                std::span<const Draw> draws) const = 0;

  // Upper bounds on the steps over a cache.
  struct Load {
    std::int32_t sequences = 0, tokens = 0;  // that decode in one step, of the longest of them
    std::int32_t step_tokens = 0;            // new ones of a step
    std::int64_t cached_tokens = 0;          // of all sequences together
  };
  // Prepares for such steps, so that none stops to do it: on a GPU memory is allocated, as far as it is free, and decode steps of all sizes
  // are recorded. The rest follows when a step needs it. No sequence of the cache is touched.
  virtual void prepare(PolicyCache& /*cache*/, const Load& /*most*/) const {}
  // Reports limitations of steps over a cache; empty: nothing.
  [[nodiscard]] virtual std::string remark(PolicyCache& /*cache*/) const { return ""; }

  // The result of run_prompt() in prompt_tensors.h.
  [[nodiscard]] virtual PromptTensors run_prompt(std::span<const std::int32_t> ids, const Needs& needs, std::span<const std::string> passes,
                                                 const RecordOptions& options) const = 0;

  // Logits [ids.size(), vocab_size] over a full cache, in chunks of this many tokens; 0: all at once.
  [[nodiscard]] std::vector<float> logits(std::span<const std::int32_t> ids, std::int32_t chunk_tokens = 0) const;
};

// Options of a model on a GPU.
struct GpuOptions {
  bool graphs = false;  // decode steps over a cache that keeps everything are recorded as CUDA graphs and launched as one
};

// Reads a Hugging Face folder. `backend`: cpu or cuda. Errors (InputError): those of the files; another backend; cuda in a program built
// without it, or where there is no GPU; weights that do not fit into the memory of the GPU, or in float32 into that of the machine.
std::unique_ptr<EngineModel> make_engine_model(std::string_view backend, const std::string& dir, const GpuOptions& gpu = {});

// A model of a shape with random weights, to take times: kernels have real sizes, results mean nothing. Errors of `backend` as above.
std::unique_ptr<EngineModel> make_random_model(std::string_view backend, const ModelConfig& config, const GpuOptions& gpu = {});

// A model on the CPU.
std::unique_ptr<EngineModel> make_cpu_model(Transformer model);

// Refuses (InputError) a recipe whose prompts cannot run as steps on this backend, whatever the model.
void require_recipe(std::string_view backend, const Recipe& recipe, const Needs& needs);

// Refuses (InputError) a backend that this program does not have or this machine cannot run.
void require_backend(std::string_view backend);

}  // namespace kvlab
