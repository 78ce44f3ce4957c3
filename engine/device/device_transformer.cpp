#include "engine/device/device_transformer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ceil_div.h"
#include "base/error.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

constexpr std::int64_t kAlign = 256;

class Carver {
 public:
  explicit Carver(std::uint8_t* memory) : memory_(memory) {}
  template <class T = void>
  T* take(std::int64_t bytes) {
    std::uint8_t* const at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += round_up(bytes, kAlign);
    return reinterpret_cast<T*>(at);
  }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  std::uint8_t* memory_;
  std::int64_t used_ = 0;
};

}  // namespace

// One pass, in the model's type unless noted.
struct DeviceTransformer::Activations {
  std::int64_t tokens = 0;
  std::int32_t *ids = nullptr, *positions = nullptr;               // [tokens]
  void *residual = nullptr, *branch = nullptr, *hidden = nullptr;  // [tokens, hidden_dim]
  void* qkv = nullptr;                                             // [tokens, q_width + 2 kv_width], or q, k, v in turn
  void *q = nullptr, *attended = nullptr;                          // [tokens, q_width]
  void *gate_up = nullptr, *gated = nullptr;                       // [tokens, 2 * intermediate_dim], [tokens, intermediate_dim]
  DeviceLayer layer;

  std::int64_t carve(Carver& memory, const ModelConfig& c, ElementType type) {
    const std::int64_t one = tokens * element_bytes(type), q_dim = c.q_width();
    ids = memory.take<std::int32_t>(tokens * 4), positions = memory.take<std::int32_t>(tokens * 4);
    residual = memory.take(one * c.hidden_dim), branch = memory.take(one * c.hidden_dim), hidden = memory.take(one * c.hidden_dim);
    qkv = memory.take(one * (q_dim + 2 * c.kv_width()));
    q = memory.take(one * q_dim), attended = memory.take(one * q_dim);
    gate_up = memory.take(2 * one * c.intermediate_dim), gated = memory.take(one * c.intermediate_dim);
    return memory.used();
  }
};

DeviceTransformer::DeviceTransformer(CudaContext& cuda, const ModelConfig& config, const WeightParts& weights, ElementType type)
    : DeviceTransformer(cuda, config, upload_weights(config, weights, type, cuda), type) {}

DeviceTransformer::DeviceTransformer(CudaContext& cuda, ModelConfig config, DeviceWeights weights, ElementType type)
    : cuda_(cuda),
      config_(std::move(config)),
      type_(type),
      weights_(std::move(weights)),
      output_weights_(static_cast<std::size_t>(config_.layers)),
      room_(TensorMemory(cuda)),
      logits_(TensorMemory(cuda)),
      rotary_({config_.rope_base, config_.rope_scaling}, config_.head_dim),
      cos_(TensorMemory(cuda)),
      sin_(TensorMemory(cuda)) {}

std::int64_t DeviceTransformer::activation_bytes(std::int64_t tokens) const {
  Activations a;
  a.tokens = tokens;
  Carver none(nullptr);
  return a.carve(none, config_, type_);
}

DeviceTransformer::Activations DeviceTransformer::activations(std::int64_t tokens) {
  const std::int64_t needed = activation_bytes(tokens);
  if (room_.size() < needed) {
    room_ = TensorArray<std::uint8_t>(TensorMemory(cuda_));  // frees first
    try {
      room_.resize(needed);
    } catch (const GpuMemoryError&) {
      const std::int64_t free = cuda::free_bytes(), fits = free / std::max<std::int64_t>(activation_bytes(1024) / 1024, 1);
      throw InputError(
          fmt::format("a step of {} tokens needs {:.2f} GiB of the GPU's memory beside weights and KV cache, {:.2f} GiB are free: "
                      "steps of at most about {} tokens fit",
                      tokens, static_cast<double>(needed) / 0x1p30, static_cast<double>(free) / 0x1p30, fits));
    }
  }
  Activations a;
  a.tokens = tokens;
  Carver memory(room_.data());
  a.carve(memory, config_, type_);
  return a;
}

void DeviceTransformer::reserve(std::int64_t tokens, std::int64_t rows) {
  const auto fits = [](std::int64_t bytes) { return bytes <= cuda::free_bytes() / 4 * 3; };
  if (const std::int64_t bytes = activation_bytes(tokens); fits(bytes)) static_cast<void>(activations(tokens));
  if (const std::int64_t floats = rows * config_.vocab_size; fits(4 * floats)) logits_.reserve(floats);
}

// With frequencies by pass length, the table is the last pass's.
void DeviceTransformer::make_rotations(std::int64_t positions) {
  const RopeScaling& scaling = config_.rope_scaling;
  const bool is_dynamic = scaling.kind == RopeScaling::Kind::kDynamic;
  const auto fixed = is_dynamic ? static_cast<std::int64_t>(scaling.original_tokens) : std::int64_t{1} << 40;
  const bool moves = positions > fixed;
  const std::int64_t half = config_.head_dim / 2, known = cos_.size() / half;
  if (moves ? positions == known : positions <= known && known <= fixed) return;
  const std::int64_t wanted = moves ? positions : std::max(positions, std::min(2 * known, fixed));
  std::vector<float> cos(static_cast<std::size_t>(wanted * half)), sin(cos.size());
  rotary_.fill(consecutive(0, wanted), cos.data(), sin.data());
  cos_.resize(0), sin_.resize(0);
  sin_.append_from_host(sin.data(), static_cast<std::int64_t>(sin.size()));
  cos_.append_from_host(cos.data(), static_cast<std::int64_t>(cos.size()));  // last: size marks known rotations
}

DeviceTransformer::Inputs DeviceTransformer::inputs(std::int64_t tokens) {
  const Activations a = activations(tokens);
  return {a.ids, a.positions};
}

void DeviceTransformer::linear(const void* x, const void* w, const void* bias, void* y, std::int64_t tokens, std::int64_t in,
                               std::int64_t out) {
  run_cuda(Linear{x, w, y, bias, tokens, in, out, type_}, cuda_);
}

// Adds the last attention or MLP output.
void DeviceTransformer::norm(const DeviceTensor& weight, const Activations& a) {
  run_cuda(RmsNorm{a.branch, a.residual, weight.data(), a.hidden, a.tokens, config_.hidden_dim, config_.norm_epsilon, type_}, cuda_);
}

// Normed heads must be dense.
void DeviceTransformer::project_apart(const DeviceLayerWeights& w, Activations& a) {
  const std::int64_t bytes = element_bytes(type_);
  auto* y = static_cast<std::uint8_t*>(a.qkv);
  const std::uint8_t *matrix = w.qkv.data(), *bias = w.qkv_bias.data();
  const auto product = [&](std::int64_t width) {
    std::uint8_t* const at = y;
    linear(a.hidden, matrix, bias, at, a.tokens, config_.hidden_dim, width);
    y += a.tokens * width * bytes, matrix += width * config_.hidden_dim * bytes;
    if (bias != nullptr) bias += width * bytes;
    return at;
  };
  const auto norm_heads = [&](void* x, const DeviceTensor& weight, std::int64_t heads) {
    run_cuda(RmsNorm{x, nullptr, weight.data(), x, a.tokens * heads, config_.head_dim, config_.norm_epsilon, type_}, cuda_);
  };
  std::uint8_t *const q = product(config_.q_width()), *const k = product(config_.kv_width()), *const v = product(config_.kv_width());
  norm_heads(q, w.q_norm, config_.q_heads);
  norm_heads(k, w.k_norm, config_.kv_heads);
  a.layer = {a.tokens, type_, a.hidden, q, k, v, config_.q_width(), config_.kv_width()};
}

void DeviceTransformer::project(const DeviceLayerWeights& w, Activations& a) {
  if (config_.qk_norm) return project_apart(w, a);
  const std::int64_t all = config_.q_width() + 2 * config_.kv_width(), bytes = element_bytes(type_);
  linear(a.hidden, w.qkv.data(), w.qkv_bias.data(), a.qkv, a.tokens, config_.hidden_dim, all);
  auto* const qkv = static_cast<std::uint8_t*>(a.qkv);
  a.layer = {a.tokens, type_, a.hidden, qkv, qkv + config_.q_width() * bytes, qkv + (config_.q_width() + config_.kv_width()) * bytes,
             all,      all};
}

void DeviceTransformer::attention(std::int32_t layer, DeviceAttentionHost& host, Activations& a) {
  const DeviceLayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  project(w, a);
  host.before_rope(layer, a.layer);
  Rope rope{a.layer.q, a.q, cos_.data(), sin_.data(), a.positions, nullptr, a.tokens, config_.q_heads, config_.head_dim};
  rope.in_stride = a.layer.q_stride, rope.type = type_;
  run_cuda(rope, cuda_);
  rope.in = a.layer.k, rope.out = const_cast<void*>(a.layer.k), rope.heads = config_.kv_heads;
  rope.in_stride = rope.out_stride = a.layer.kv_stride;
  run_cuda(rope, cuda_);
  a.layer.q = a.q, a.layer.q_stride = config_.q_width();
  host.attend(layer, a.layer, a.attended);
  linear(a.attended, w.o.data(), w.o_bias.data(), a.branch, a.tokens, config_.q_width(), config_.hidden_dim);
}

void DeviceTransformer::mlp(const DeviceLayerWeights& w, const Activations& a) {
  const std::int64_t inner = config_.intermediate_dim;
  linear(a.hidden, w.gate_up.data(), w.gate_up_bias.data(), a.gate_up, a.tokens, config_.hidden_dim, 2 * inner);
  const void* const up = static_cast<const std::uint8_t*>(a.gate_up) + inner * element_bytes(type_);
  run_cuda(SiluMul{a.gate_up, up, a.gated, a.tokens, inner, 2 * inner, type_}, cuda_);
  linear(a.gated, w.down.data(), w.down_bias.data(), a.branch, a.tokens, inner, config_.hidden_dim);
}

const void* DeviceTransformer::forward(const TokenBatch& batch, DeviceAttentionHost& host) {
  std::int32_t last = 0;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    check_token(config_, batch.positions[i], batch.ids[i]);
    last = std::max(last, batch.positions[i]);
  }
  const auto tokens = static_cast<std::int64_t>(batch.ids.size());
  make_rotations(std::int64_t{last} + 1);
  const Inputs to = inputs(tokens);
  cuda::to_device(to.ids, batch.ids.data(), tokens * 4, cuda_.stream());
  cuda::to_device(to.positions, batch.positions.data(), tokens * 4, cuda_.stream());
  return run(tokens, host);
}

const void* DeviceTransformer::run(std::int64_t tokens, DeviceAttentionHost& host) {
  Activations a = activations(tokens);
  cuda::fill(a.residual, 0, a.tokens * config_.hidden_dim * element_bytes(type_), cuda_.stream());
  run_cuda(Embedding{a.ids, weights_.embedding.data(), a.branch, a.tokens, config_.hidden_dim, type_}, cuda_);
  for (std::int32_t layer = 0; layer < config_.layers; ++layer) {
    const DeviceLayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
    norm(w.attention_norm, a);
    attention(layer, host, a);
    norm(w.mlp_norm, a);
    mlp(w, a);
  }
  norm(weights_.final_norm, a);
  return hidden_ = a.hidden;
}

void DeviceTransformer::head(const void* hidden, std::int64_t rows) {
  const DeviceTensor& w = weights_.head.data() != nullptr ? weights_.head : weights_.embedding;
  Linear product{hidden, w.data(), logits_.data(), nullptr, rows, config_.hidden_dim, config_.vocab_size, type_};
  product.y_is_f32 = true;
  run_cuda(product, cuda_);
}

const void* DeviceTransformer::rows_of_pass(std::span<const std::int32_t> rows) {
  const auto n = static_cast<std::int64_t>(rows.size());
  auto* const chosen = cuda_.scratch<std::uint8_t>(n * config_.hidden_dim * element_bytes(type_));
  run_cuda(Embedding{cuda_.upload(rows.data(), n), hidden_, chosen, n, config_.hidden_dim, type_}, cuda_);
  return chosen;
}

const float* DeviceTransformer::logits(std::span<const std::int32_t> rows) {
  const auto n = static_cast<std::int64_t>(rows.size());
  logits_.resize(n * config_.vocab_size);
  const CudaContext::Frame frame(cuda_);
  head(rows_of_pass(rows), n);
  return logits_.data();
}

const float* DeviceTransformer::logits_of(std::span<const float> hidden) {
  const auto floats = static_cast<std::int64_t>(hidden.size()), n = floats / config_.hidden_dim;
  logits_.resize(n * config_.vocab_size);
  const CudaContext::Frame frame(cuda_);
  auto* const typed = cuda_.scratch<std::uint8_t>(floats * element_bytes(type_));
  run_cuda(DeviceConvert{cuda_.upload(hidden.data(), floats), typed, n, config_.hidden_dim, 0, 0, ElementType::kF32, type_}, cuda_);
  head(typed, n);
  return logits_.data();
}

const float* DeviceTransformer::all_logits(std::int64_t tokens) {
  logits_.resize(tokens * config_.vocab_size);
  head(hidden_, tokens);
  return logits_.data();
}

const float* DeviceTransformer::output_weights(std::int32_t layer) {
  TensorArray<float>& w = output_weights_[static_cast<std::size_t>(layer)];
  if (w.size() == 0) {
    w.settle_in(TensorMemory(cuda_));
    w.resize(config_.hidden_dim * config_.q_width());
    run_cuda(DeviceConvert{weights_.layers[static_cast<std::size_t>(layer)].o.data(), w.data(), config_.hidden_dim, config_.q_width(), 0, 0,
                           type_, ElementType::kF32},
             cuda_);
  }
  return w.data();
}

}  // namespace kvlab
