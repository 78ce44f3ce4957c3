#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/big_array.h"
#include "engine/model/config.h"

namespace kvlab {

// float32, in memory that ModelWeights holds; empty if the model has none.
using Weight = std::span<const float>;

// Matrices [out, in] row-major, whatever type the file has.
struct LayerWeights {
  Weight attention_norm, mlp_norm;  // [hidden_dim]
  Weight q;                         // [q_heads * head_dim, hidden_dim]
  Weight k, v;                      // [kv_heads * head_dim, hidden_dim]
  Weight o;                         // [hidden_dim, q_heads * head_dim]
  Weight gate, up;                  // [intermediate_dim, hidden_dim]
  Weight down;                      // [hidden_dim, intermediate_dim]
  Weight q_bias, k_bias, v_bias;    // [out]
  Weight o_bias;                    // [hidden_dim]
  Weight gate_bias, up_bias;        // [intermediate_dim]
  Weight down_bias;                 // [hidden_dim]
  Weight q_norm, k_norm;            // [head_dim]
};

struct ModelWeights {
  std::shared_ptr<const BigArray<float>> memory;  // all tensors in the order in which a forward pass reads them; copies share it
  Weight embedding;                               // [vocab_size, hidden_dim]
  Weight final_norm;                              // [hidden_dim]
  Weight untied_head;                             // [vocab_size, hidden_dim]; empty: the head is the embedding
  std::vector<LayerWeights> layers;

  [[nodiscard]] Weight head() const { return untied_head.empty() ? embedding : untied_head; }
};

// Room for all tensors of a model, each filled by `fill`, which gets its name in Hugging Face layout and its shape. Error (InputError),
// as wherever weights are laid out: they take more memory than this machine has free.
using FillTensor = std::function<void(const std::string& name, const std::vector<std::int64_t>& shape, std::span<float> to)>;
ModelWeights make_weights(const ModelConfig& config, const FillTensor& fill);

// Random matrices, norms of 1 and biases of 0, which keep numbers in bounds: to time a model of a given shape.
ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed);

class WeightFiles;

// The tensors of a folder's safetensors files (F32, BF16 or F16), which must be exactly the model's; buffers of RoPE frequencies, which
// older files carry, are passed over. Files are mapped, not read: nothing is held in float32 but what is asked for, all of it or a part.
class WeightReader {
 public:
  // Errors (InputError): all of WeightFiles'; a tensor that is missing, of another shape or dtype, or has no place in the model; a head
  // that differs from the embedding that config.json ties it to.
  WeightReader(const std::string& dir, ModelConfig config);

  // Numbers of the model, tied ones once.
  [[nodiscard]] std::int64_t num_weights() const;

  // Errors (InputError): a tensor of it holds a NaN or infinity; it takes more memory than there is.
  [[nodiscard]] ModelWeights all() const;
  [[nodiscard]] ModelWeights tables() const;                   // embedding, last norm and head, without layers
  [[nodiscard]] ModelWeights layer(std::int32_t layer) const;  // `layers` is this one alone

 private:
  ModelConfig config_;
  std::shared_ptr<const WeightFiles> files_;
};

// WeightReader's all(), with its errors.
ModelWeights load_weights(const std::string& dir, const ModelConfig& config);

}  // namespace kvlab
