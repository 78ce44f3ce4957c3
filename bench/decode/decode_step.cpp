#include "bench/decode/decode_step.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>

#include "base/ceil_div.h"
#include "base/quantile.h"
#include "engine/device/device_model.h"
#include "engine/device/plain_decoder.h"
#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/device/cuda/events.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"

namespace kvlab {

namespace {

constexpr double kHoldSeconds = 2e-3;  // longer than launching a step's kernels of one kind

double time_on_device(CudaContext& cuda, int repeats, const std::function<void()>& work) {
  work();  // warm-up: allocates scratch memory, chooses algorithms
  std::vector<double> seconds;
  CudaTimer timer;
  for (int i = 0; i < repeats; ++i) {
    timer.hold(kHoldSeconds, cuda.stream());
    timer.start(cuda.stream());
    work();
    timer.stop(cuda.stream());
    seconds.push_back(timer.seconds());
  }
  return upper_median(std::move(seconds));
}

// Sequences of context - 1 zero tokens; each layer has its own pages in random order.
std::vector<EngineSequence> filled_sequences(PolicyCache& cache, std::int32_t batch, std::int32_t context) {
  KvPages& pages = cache.pages();
  const std::int32_t page_tokens = pages.page_tokens(), row_pages = ceil_div(context, page_tokens), held = context - 1;
  const ModelShape& shape = cache.shape();
  const std::int32_t all = batch * shape.num_layers * shape.kv_heads * row_pages;
  pages.reserve(all);
  KvRows kv;
  pages.fill(kv);
  const std::int64_t bytes = kv.pool_tokens * kv.head_dim * element_bytes(kv.type);
  pages.memory().fill(kv.k, 0, bytes);
  pages.memory().fill(kv.v, 0, bytes);
  std::vector<std::int32_t> order(static_cast<std::size_t>(all));
  std::iota(order.begin(), order.end(), pages.take_run(all));
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  std::vector<EngineSequence> sequences(static_cast<std::size_t>(batch));
  auto next = order.begin();
  for (std::int32_t s = 0; s < batch; ++s) {
    EngineSequence& sequence = sequences[static_cast<std::size_t>(s)];
    sequence.index = s, sequence.prompt_tokens = held;
    cache.start(sequence);
    sequence.seen_tokens = held;
    for (KvStore::Sequence& layer : sequence.rows)
      for (std::size_t h = 0; h < layer.len.size(); ++h) {
        layer.len[h] = held;
        layer.pages[h].assign(next, next + row_pages);
        next += row_pages;
      }
  }
  return sequences;
}

// Each kind of kernel of a step on arrays of its shapes, per layer on its weights and pages.
class StepKernels {
 public:
  StepKernels(DeviceTransformer& model, PolicyCache& cache, std::span<const EngineSequence> sequences, int repeats)
      : model_(model),
        c_(model.config()),
        type_(model.type()),
        cuda_(model.cuda()),
        n_(static_cast<std::int64_t>(sequences.size())),
        repeats_(repeats),
        in_(n_ * widest() * element_bytes(type_)),
        out_(n_ * widest() * 4),
        ids_(std::vector<std::int32_t>(sequences.size(), 1)),
        zeros_(std::vector<std::int32_t>(2 * sequences.size(), 0)),
        cos_(std::vector<float>(static_cast<std::size_t>(c_.head_dim / 2), 1.0F)) {
    cuda::fill(in_.data(), 0, in_.bytes(), cuda_.stream());
    cuda::fill(out_.data(), 0, out_.bytes(), cuda_.stream());
    list_pages(cache, sequences);
  }

  std::vector<DecodeStepTimes::Kernel> measure() {
    const std::int64_t hidden = c_.hidden_dim, inner = c_.intermediate_dim, vocabulary = c_.vocab_size, q = q_width();
    const DeviceWeights& w = model_.weights();
    add("embedding", 1, [&](std::size_t) { run_cuda(Embedding{ids_.data(), w.embedding.data(), out(), n_, hidden, type_}, cuda_); });
    add("rmsnorm", 2 * c_.layers + 1, [&](std::size_t) {
      run_cuda(RmsNorm{in(), out(), w.final_norm.data(), in(), n_, hidden, 1e-5F, type_}, cuda_);
    });
    linear("linear_qkv", hidden, q + 2 * kv_width(), [](const DeviceLayerWeights& l) { return l.qkv.data(); });
    add_attention();
    linear("linear_o", q, hidden, [](const DeviceLayerWeights& l) { return l.o.data(); });
    linear("linear_gate_up", hidden, 2 * inner, [](const DeviceLayerWeights& l) { return l.gate_up.data(); });
    add("silu_mul", c_.layers, [&](std::size_t) {
      run_cuda(SiluMul{in(), in() + inner * element_bytes(type_), out(), n_, inner, 2 * inner, type_}, cuda_);
    });
    linear("linear_down", inner, hidden, [](const DeviceLayerWeights& l) { return l.down.data(); });
    add("linear_head", 1, [&](std::size_t) {
      Linear op{in(), w.head.data() != nullptr ? w.head.data() : w.embedding.data(), out(), nullptr, n_, hidden, vocabulary, type_};
      op.y_is_f32 = true;
      run_cuda(op, cuda_);
    });
    add("sampling", 1, [&](std::size_t) {
      const auto* const temperature = reinterpret_cast<const float*>(zeros_.data());
      const auto* const key = reinterpret_cast<const std::uint64_t*>(zeros_.data());
      run_cuda(Sampling{out(), temperature, key, ids_.data(), n_, vocabulary, 0, ElementType::kF32}, cuda_);
    });
    return std::move(kernels_);
  }

 private:
  // From the QKV product to the output product.
  void add_attention() {
    const std::int64_t q = q_width(), kv = kv_width();
    add("rope", 2 * c_.layers, [&](std::size_t i) {
      const bool is_k = i % 2 == 1;
      std::uint8_t* const from = is_k ? in() + q * element_bytes(type_) : in();
      Rope op{from,       is_k ? from : out(), cos_.data(), cos_.data(), zeros_.data(), nullptr, n_, is_k ? c_.kv_heads : c_.q_heads,
              c_.head_dim};
      op.in_stride = q + 2 * kv, op.out_stride = is_k ? q + 2 * kv : 0, op.type = type_;
      run_cuda(op, cuda_);
    });
    add("append_kv", c_.layers, [&](std::size_t l) {
      const std::uint8_t* const k = in() + q * element_bytes(type_);
      run_cuda(AppendKv{kv_of(l), k, k + kv * element_bytes(type_), q + 2 * kv, nullptr, n_, 1}, cuda_);
    });
    add("attention_decode", c_.layers, [&](std::size_t l) {
      PagedDecode op;
      op.kv = kv_of(l), op.q = in(), op.out = out(), op.out_type = type_, op.counters = counters_.data();
      op.q_heads = c_.q_heads, op.longest = longest_, op.kv_tokens = std::int64_t{kv_.num_rows} * longest_;
      run_cuda(op, cuda_);
    });
  }
  [[nodiscard]] std::int64_t q_width() const { return std::int64_t{c_.q_heads} * c_.head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return std::int64_t{c_.kv_heads} * c_.head_dim; }
  [[nodiscard]] std::int64_t widest() const {
    return std::max({std::int64_t{c_.vocab_size}, 2 * std::int64_t{c_.intermediate_dim}, q_width() + 2 * kv_width()});
  }
  // Includes the new token.
  void list_pages(PolicyCache& cache, std::span<const EngineSequence> sequences) {
    std::vector<std::int32_t> len, begin, page;
    for (std::size_t l = 0; l < static_cast<std::size_t>(c_.layers); ++l)
      for (const EngineSequence& s : sequences)
        for (std::size_t h = 0; h < static_cast<std::size_t>(c_.kv_heads); ++h) {
          const std::vector<std::int32_t>& own = s.rows[l].pages[h];
          longest_ = s.rows[l].len[h] + 1;
          if (l == 0) len.push_back(longest_), begin.push_back(static_cast<std::int32_t>(page.size()));
          page.insert(page.end(), own.begin(), own.end());
        }
    len_ = DeviceBuffer<std::int32_t>(len), begin_ = DeviceBuffer<std::int32_t>(begin), page_ = DeviceBuffer<std::int32_t>(page);
    counters_ = DeviceBuffer<std::int32_t>(std::vector<std::int32_t>(len.size(), 0));
    KvRows pool;
    cache.pages().fill(pool);
    kv_.format = type_ == ElementType::kF16 ? KvFormat::kF16 : KvFormat::kBf16, kv_.type = type_;
    kv_.num_rows = static_cast<std::int32_t>(len.size()), kv_.kv_heads = c_.kv_heads, kv_.head_dim = c_.head_dim;
    kv_.page_tokens = pool.page_tokens, kv_.k = pool.k, kv_.v = pool.v;
    kv_.len = len_.data(), kv_.page_begin = begin_.data();
  }
  [[nodiscard]] PagedKv kv_of(std::size_t layer) const {
    PagedKv kv = kv_;
    kv.page = page_.data() + static_cast<std::int64_t>(layer) * (page_.size() / c_.layers);
    return kv;
  }
  std::uint8_t* in() { return in_.data(); }
  std::uint8_t* out() { return out_.data(); }
  void add(const char* name, std::int64_t launches, const std::function<void(std::size_t)>& run) {
    const double seconds = time_on_device(cuda_, repeats_, [&] {
      for (std::int64_t i = 0; i < launches; ++i) run(static_cast<std::size_t>(i));
    });
    kernels_.push_back({name, launches, seconds});
  }
  void linear(const char* name, std::int64_t from, std::int64_t to, const std::function<const void*(const DeviceLayerWeights&)>& weight) {
    add(name, c_.layers, [&, from, to](std::size_t l) {
      run_cuda(Linear{in(), weight(model_.weights().layers[l]), out(), nullptr, n_, from, to, type_}, cuda_);
    });
  }

  DeviceTransformer& model_;
  const ModelConfig& c_;
  ElementType type_;
  CudaContext& cuda_;
  std::int64_t n_;
  int repeats_;
  DeviceBuffer<std::uint8_t> in_, out_;
  DeviceBuffer<std::int32_t> ids_, zeros_;  // zeros_: positions, temperatures, keys
  DeviceBuffer<float> cos_;
  DeviceBuffer<std::int32_t> len_, begin_, page_, counters_;  // [rows], [layers, pages]
  PagedKv kv_;                                                // all layers, without pages
  std::int32_t longest_ = 0;
  std::vector<DecodeStepTimes::Kernel> kernels_;
};

// Every weight once (of the embedding only looked-up rows), and the cache with the new token.
std::int64_t bytes_of_step(const ModelConfig& c, ElementType type, std::int64_t batch, std::int64_t context) {
  const std::int64_t hidden = c.hidden_dim, q = std::int64_t{c.q_heads} * c.head_dim, kv = std::int64_t{c.kv_heads} * c.head_dim;
  const std::int64_t layer = hidden * (2 * q + 2 * kv + 3 * std::int64_t{c.intermediate_dim} + 2);
  const std::int64_t weights = c.layers * layer + hidden * (c.vocab_size + batch + 1);
  return element_bytes(type) * (weights + c.layers * batch * 2 * kv * context);
}

}  // namespace

ModelConfig llama_8b() {
  ModelConfig c;
  c.name = "llama-3.1-8b";
  c.layers = 32, c.hidden_dim = 4096, c.intermediate_dim = 14336;
  c.q_heads = 32, c.kv_heads = 8, c.head_dim = 128;
  c.vocab_size = 128256, c.max_tokens = 131072;
  c.rope_base = 500000, c.norm_epsilon = 1e-5F;
  return c;
}

DecodeStepTimes time_decode_step(const ModelConfig& config, ElementType type, std::int32_t batch, std::int32_t context, int repeats,
                                 CudaContext& cuda) {
  DeviceTransformer model(cuda, config, random_weights(config, type, cuda), type);
  PolicyCache cache(make_cache_model(model), load_recipe("full"), {});
  std::vector<EngineSequence> sequences = filled_sequences(cache, batch, context);
  DecodeStepTimes times;
  times.bytes = bytes_of_step(config, type, batch, context);
  times.kernels = StepKernels(model, cache, sequences, repeats).measure();
  for (const bool graphs : {false, true}) {
    PlainDecoder decoder(model, cache, graphs);
    std::vector<PlainDecoder::Token> tokens;
    for (EngineSequence& s : sequences) tokens.push_back({&s, 1, 0, 0});
    std::vector<double> steps;
    for (int i = 0; i < repeats + 2; ++i) {
      for (EngineSequence& s : sequences) s.seen_tokens = context - 1;  // repeat the step
      for (EngineSequence& s : sequences)
        for (KvStore::Sequence& layer : s.rows) std::fill(layer.len.begin(), layer.len.end(), context - 1);
      const auto begin = std::chrono::steady_clock::now();
      decoder.step(tokens);
      if (i >= 2) steps.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    (graphs ? times.device_seconds : times.plain_seconds) = time_on_device(cuda, repeats, [&] { decoder.repeat(); });
    if (graphs) times.step_seconds = upper_median(std::move(steps));
  }
  for (EngineSequence& s : sequences) cache.release(s);
  return times;
}

}  // namespace kvlab
