#include "engine/device/device_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "engine/device/plain_decoder.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/device/cuda/upload.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"

namespace kvlab {

namespace {

class DeviceCacheModel final : public CacheModel {
 public:
  explicit DeviceCacheModel(DeviceTransformer& model) : model_(model) {}
  [[nodiscard]] const ModelConfig& config() const override { return model_.config(); }
  [[nodiscard]] TensorMemory memory() const override { return TensorMemory(model_.cuda()); }
  [[nodiscard]] ElementType kv_type() const override { return model_.type(); }
  [[nodiscard]] const float* output_weights(std::int32_t layer) const override { return model_.output_weights(layer); }

 private:
  DeviceTransformer& model_;
};

// Copies a layer's tensors to CPU memory, into a cache.
class LayerReader final : public DeviceAttentionHost {
 public:
  LayerReader(const ModelConfig& config, const Needs& needs, PolicyCache& cache, CudaContext& cuda, std::vector<LayerTensors>& layers)
      : config_(config), needs_(needs), cache_(cache), cuda_(cuda), layers_(layers) {}

  void before_rope(std::int32_t layer, const DeviceLayer& in) override {
    LayerTensors& to = layers_[static_cast<std::size_t>(layer)];
    if (needs_.hidden) append(to.hidden, in.hidden, in, config_.hidden_dim, config_.hidden_dim);
    if (needs_.pre_rope_queries) append(to.pre_q, in.q, in, config_.q_width(), in.q_stride);
    if (needs_.pre_rope_keys) append(to.pre_k, in.k, in, config_.kv_width(), in.kv_stride);
    cache_.before_rope(layer, in);
  }
  void attend(std::int32_t layer, const DeviceLayer& in, void* out) override {
    LayerTensors& to = layers_[static_cast<std::size_t>(layer)];
    if (needs_.step_queries || needs_.window_queries > 0) append(to.q, in.q, in, config_.q_width(), in.q_stride);
    append(to.k, in.k, in, config_.kv_width(), in.kv_stride);
    append(to.v, in.v, in, config_.kv_width(), in.kv_stride);
    cache_.attend(layer, in, out);
  }

 private:
  void append(std::vector<float>& to, const void* data, const DeviceLayer& in, std::int64_t width, std::int64_t stride) {
    const CudaContext::Frame frame(cuda_);
    auto* const floats = cuda_.scratch<float>(in.tokens * width);
    run_cuda(DeviceConvert{data, floats, in.tokens, width, stride, width, in.type, ElementType::kF32}, cuda_);
    const std::vector<float> more = download(cuda_, floats, in.tokens * width);
    to.insert(to.end(), more.begin(), more.end());
  }

  const ModelConfig& config_;
  const Needs& needs_;
  PolicyCache& cache_;
  CudaContext& cuda_;
  std::vector<LayerTensors>& layers_;
};

void run_step(DeviceTransformer& model, PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
              DeviceAttentionHost& host) {
  cache.begin_step(pieces);
  model.forward(batch, host);
  cache.end_step({});
}

// After a prompt held whole.
class DevicePassHost final : public PassHost {
 public:
  DevicePassHost(DeviceTransformer& model, PolicyCache& cache, EngineSequence& sequence, bool pass_hidden)
      : model_(model), cache_(cache), sequence_(sequence), prompt_tokens_(sequence.seen_tokens) {
    needs_.step_queries = true, needs_.hidden = pass_hidden;
    next_ = behind_prompt_ = likeliest(prompt_tokens_ - 1);
    sequence_.prompt_tokens = INT32_MAX;  // attends like a prompt
  }

  void run(std::span<const std::int32_t> ids, Recorder& recorder) override {
    std::vector<LayerTensors> layers(static_cast<std::size_t>(model_.config().layers));
    const std::vector<std::int32_t> positions = consecutive(sequence_.seen_tokens, std::ssize(ids));
    const StepPiece piece{&sequence_, static_cast<std::int32_t>(ids.size())};
    LayerReader reader(model_.config(), needs_, cache_, model_.cuda(), layers);
    run_step(model_, cache_, {&piece, 1}, {ids, positions}, reader);
    next_ = kUnknown, last_ = piece.new_tokens - 1;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const auto layer = static_cast<std::int32_t>(l);
      if (needs_.hidden) recorder.on_hidden(layer, layers[l].hidden);
      recorder.on_attention(layer, layers[l].q, layers[l].k, layers[l].v, {});
    }
  }
  [[nodiscard]] std::int32_t next_token() override { return next_ == kUnknown ? next_ = likeliest(last_) : next_; }
  void rewind() override {
    cache_.truncate(sequence_, prompt_tokens_);
    next_ = behind_prompt_;
  }

 private:
  static constexpr std::int32_t kUnknown = -1;
  std::int32_t likeliest(std::int32_t row) {
    const std::int32_t vocabulary = model_.config().vocab_size;
    return greedy_token(download(model_.cuda(), model_.logits({&row, 1}), vocabulary), vocabulary);
  }

  DeviceTransformer& model_;
  PolicyCache& cache_;
  EngineSequence& sequence_;
  Needs needs_;
  std::int32_t prompt_tokens_, behind_prompt_ = kUnknown, next_ = kUnknown, last_ = 0;
};

class DeviceModel final : public EngineModel {
 public:
  DeviceModel(std::unique_ptr<CudaContext> cuda, std::unique_ptr<DeviceTransformer> model, const GpuOptions& options)
      : cuda_(std::move(cuda)), model_(std::move(model)), options_(options) {}

  [[nodiscard]] const ModelConfig& config() const override { return model_->config(); }
  [[nodiscard]] std::string_view backend() const override { return "cuda"; }
  [[nodiscard]] ElementType kv_type() const override { return model_->type(); }
  [[nodiscard]] const Transformer* transformer() const override { return nullptr; }
  [[nodiscard]] std::unique_ptr<PolicyCache> make_cache(const Recipe& recipe, const PolicyCache::Options& options) const override {
    return std::make_unique<PolicyCache>(make_cache_model(*model_), recipe, options);
  }

  std::vector<float> forward(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                             std::span<const std::int32_t> rows) const override {
    return fitted([&] {
      run_step(*model_, cache, pieces, batch, cache);
      return hidden_of(rows);
    });
  }
  [[nodiscard]] std::vector<float> head(std::span<const float> hidden) const override {
    return fitted([&] {
      const std::int64_t n = static_cast<std::int64_t>(hidden.size()) / config().hidden_dim;
      return download(*cuda_, model_->logits_of(hidden), n * config().vocab_size);
    });
  }
  std::vector<float> step(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                          std::span<const std::int32_t> rows) const override {
    return fitted([&] {
      run_step(*model_, cache, pieces, batch, cache);
      return download(*cuda_, model_->logits(rows), static_cast<std::int64_t>(rows.size()) * config().vocab_size);
    });
  }

  std::vector<float> recorded_step(PolicyCache& cache, const StepPiece& piece, const TokenBatch& batch, const RecordOptions& options,
                                   std::vector<LayerTensors>& layers) const override {
    return fitted([&] {
      Needs needs;
      needs.step_queries = true, needs.hidden = options.hidden;
      needs.pre_rope_queries = needs.pre_rope_keys = options.pre_rope;
      LayerReader reader(config(), needs, cache, *cuda_, layers);
      run_step(*model_, cache, {&piece, 1}, batch, reader);
      const std::int32_t last = piece.new_tokens - 1;
      return download(*cuda_, model_->logits({&last, 1}), config().vocab_size);
    });
  }
  [[nodiscard]] std::vector<float> output_weights(std::int32_t layer) const override {
    return fitted([&] {
      return download(*cuda_, model_->output_weights(layer), std::int64_t{config().hidden_dim} * config().q_heads * config().head_dim);
    });
  }

  std::vector<std::int32_t> sample_step(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                                        std::span<const Draw> draws) const override {
    return fitted([&]() -> std::vector<std::int32_t> {
      if (is_plain(cache, pieces, draws)) return decode_plain(cache, pieces, batch, draws);
      run_step(*model_, cache, pieces, batch, cache);
      if (draws.empty()) {
        cuda_->synchronize();
        return {};
      }
      std::vector<std::int32_t> rows;
      std::vector<float> temperature;
      std::vector<std::uint64_t> key;
      for (const Draw& draw : draws) rows.push_back(draw.row), temperature.push_back(draw.temperature), key.push_back(draw.key);
      const auto n = static_cast<std::int64_t>(draws.size());
      const CudaContext::Frame frame(*cuda_);
      auto* const tokens = cuda_->scratch<std::int32_t>(n);
      run_cuda(Sampling{model_->logits(rows), cuda_->upload(temperature.data(), n), cuda_->upload(key.data(), n), tokens, n,
                        config().vocab_size, 0, ElementType::kF32},
               *cuda_);
      return download(*cuda_, tokens, n);
    });
  }

  void prepare(PolicyCache& cache, const Load& most) const override {
    fitted([&] {
      model_->reserve(std::max(most.step_tokens, most.sequences + 7), most.sequences + 7);  // decode steps are rounded up
      if (PlainDecoder::can_run(*model_, cache)) decoder_of(cache).prepare(most.sequences, most.tokens, most.cached_tokens);
    });
  }

  [[nodiscard]] std::string remark(PolicyCache& cache) const override {
    return cache.attachment() == nullptr ? "" : decoder_of(cache).remark();
  }

  [[nodiscard]] PromptTensors run_prompt(std::span<const std::int32_t> ids, const Needs& needs, std::span<const std::string> passes,
                                         const RecordOptions& options) const override {
    return fitted([&] {
      PromptTensors prompt;
      prompt.ids.assign(ids.begin(), ids.end());
      prompt.layers.resize(static_cast<std::size_t>(config().layers));
      const std::unique_ptr<PolicyCache> cache = make_cache(load_recipe("full"), {});
      EngineSequence sequence;
      sequence.prompt_tokens = prompt.tokens();
      cache->start(sequence);
      const std::vector<std::int32_t> positions = consecutive(0, std::ssize(ids));
      const StepPiece piece{&sequence, prompt.tokens()};
      LayerReader reader(config(), needs, *cache, *cuda_, prompt.layers);
      run_step(*model_, *cache, {&piece, 1}, {ids, positions}, reader);
      prompt.last_hidden = hidden_of(std::vector<std::int32_t>{prompt.tokens() - 1});
      if (!passes.empty()) {
        DevicePassHost host(*model_, *cache, sequence, options.hidden);
        for (const std::string& name : passes)
          prompt.passes[name] = std::make_shared<ExtraPass>(run_extra_pass(name, host, config(), ids, options));
      }
      cache->release(sequence);
      return prompt;
    });
  }

 private:
  // Reports missing memory, except for weights, activations and KV cache.
  template <class F>
  auto fitted(const F& f) const -> decltype(f()) {
    try {
      return f();
    } catch (const GpuMemoryError& e) {
      throw InputError(
          fmt::format("a step of model '{}' does not fit into the GPU's memory beside weights and KV cache ({}): "
                      "run fewer or shorter sequences at a time, or give the KV cache fewer blocks",
                      config().name, e.what()));
    }
  }

  // One drawn token per sequence.
  [[nodiscard]] bool is_plain(const PolicyCache& cache, std::span<const StepPiece> pieces, std::span<const Draw> draws) const {
    if (pieces.size() != draws.size() || !PlainDecoder::can_run(*model_, cache)) return false;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const EngineSequence& s = *pieces[i].sequence;
      if (pieces[i].new_tokens != 1 || s.seen_tokens < s.prompt_tokens || draws[i].row != static_cast<std::int32_t>(i)) return false;
    }
    return true;
  }
  PlainDecoder& decoder_of(PolicyCache& cache) const {
    if (cache.attachment() == nullptr) cache.attachment() = std::make_shared<PlainDecoder>(*model_, cache, options_.graphs);
    return *static_cast<PlainDecoder*>(cache.attachment().get());
  }
  std::vector<std::int32_t> decode_plain(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                                         std::span<const Draw> draws) const {
    std::vector<PlainDecoder::Token> tokens;
    for (std::size_t i = 0; i < pieces.size(); ++i)
      tokens.push_back({pieces[i].sequence, batch.ids[i], draws[i].temperature, draws[i].key});
    return decoder_of(cache).step(tokens);
  }
  // In float32.
  [[nodiscard]] std::vector<float> hidden_of(std::span<const std::int32_t> rows) const {
    const std::int64_t width = config().hidden_dim, n = static_cast<std::int64_t>(rows.size());
    if (n == 0) return {};
    const CudaContext::Frame frame(*cuda_);
    auto* const floats = cuda_->scratch<float>(n * width);
    run_cuda(DeviceConvert{model_->rows_of_pass(rows), floats, n, width, 0, 0, model_->type(), ElementType::kF32}, *cuda_);
    return download(*cuda_, floats, n * width);
  }

  std::unique_ptr<CudaContext> cuda_;
  std::unique_ptr<DeviceTransformer> model_;
  GpuOptions options_;
};

}  // namespace

std::unique_ptr<const CacheModel> make_cache_model(DeviceTransformer& model) { return std::make_unique<DeviceCacheModel>(model); }

namespace {

ElementType sixteen_bits() { return gpu_info(0).compute_capability >= 80 ? ElementType::kBf16 : ElementType::kF16; }

// `weights` makes them in the context's memory.
template <class F>
std::unique_ptr<EngineModel> device_model(const ModelConfig& config, const GpuOptions& options, ElementType type, F&& weights) {
  auto cuda = std::make_unique<CudaContext>();
  auto model = std::make_unique<DeviceTransformer>(*cuda, config, weights(*cuda), type);
  return std::make_unique<DeviceModel>(std::move(cuda), std::move(model), options);
}

}  // namespace

std::unique_ptr<EngineModel> make_device_model(const ModelConfig& config, const WeightParts& weights, const GpuOptions& options,
                                               std::optional<ElementType> asked) {
  const ElementType type = asked ? *asked : sixteen_bits();
  return device_model(config, options, type, [&](CudaContext& cuda) { return upload_weights(config, weights, type, cuda); });
}

std::unique_ptr<EngineModel> make_random_device_model(const ModelConfig& config, const GpuOptions& options) {
  const ElementType type = sixteen_bits();
  return device_model(config, options, type, [&](CudaContext& cuda) { return random_weights(config, type, cuda); });
}

}  // namespace kvlab
