#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/cache/sequence.h"
#include "policies/kv/policy/policy.h"

namespace kvlab {

// One sequence and layer, valid during the step, in the model's memory.
struct LayerTensorsOfStep {
  const float* q = nullptr;              // [new_tokens, q_heads, head_dim]; [rows, ...] after pruning
  const float* hidden = nullptr;         // [new_tokens, hidden_dim]
  const float* hidden_before = nullptr;  // of the previous layer
  std::int32_t rows = -1;                // -1: new_tokens
};

class EngineObserver final : public Observer {
 public:
  EngineObserver(const Needs& needs, const ModelShape& model, TensorMemory memory, std::span<const SeqStep> seqs,
                 std::span<EngineSequence* const> sequences)
      : needs_(needs),
        model_(model),
        memory_(memory),
        seqs_(seqs),
        sequences_(sequences),
        tensors_(static_cast<std::size_t>(model.num_layers)) {
    for (auto& layer : tensors_) layer.resize(seqs.size());
  }
  // Set before the layer is observed.
  LayerTensorsOfStep& at(std::int32_t layer, std::size_t sequence) { return tensors_[static_cast<std::size_t>(layer)][sequence]; }
  // Layer by layer, if needed.
  void add_output_weights(const float* w_o) { w_o_.push_back(w_o); }
  void add_query_weights(const QueryWeights& w_q) { w_q_.push_back(w_q); }

  Observed observe(std::int32_t layer) override;

 private:
  struct Answer;
  [[nodiscard]] std::vector<PassQueries> pass_queries(const ExtraPass* pass, std::int32_t layer, Answer& a) const;

  Needs needs_;
  ModelShape model_;
  TensorMemory memory_;
  std::span<const SeqStep> seqs_;
  std::span<EngineSequence* const> sequences_;
  std::vector<std::vector<LayerTensorsOfStep>> tensors_;  // [layers][sequences]
  std::vector<const float*> w_o_;
  std::vector<QueryWeights> w_q_;
  struct Answer {
    std::vector<Queries> step, window, pre_rope_queries;
    std::vector<const float*> pre_rope_keys, hidden, hidden_before;
    std::vector<const std::int32_t*> ids;
    std::vector<std::vector<PassQueries>> chunks;
    std::vector<std::span<const PassQueries>> pass;
    std::vector<TensorArray<float>> uploads;  // of passes, if the model is on a GPU
  };
  std::vector<std::unique_ptr<Answer>> answers_;
};

}  // namespace kvlab
