// Gradients of the backward pass against central differences of a second forward pass, written in double.
#include "engine/model/gradient_tape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/random.h"
#include "engine/model/record.h"
#include "tests/engine/small_model.h"

namespace kvlab::test {
namespace {

using Doubles = std::vector<double>;

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

// Weights, norms and biases all random.
Transformer tape_model(const ModelConfig& c) {
  std::uint64_t tensor = 0;
  return {c, make_weights(c, [&](const std::string& name, const std::vector<std::int64_t>& shape, std::span<float> to) {
            ++tensor;
            const double size = shape.size() > 1 ? 1.2 / std::sqrt(static_cast<double>(shape.back())) : 0.2;
            const double middle = name.find("norm") == std::string::npos ? 0 : 1;
            for (std::size_t i = 0; i < to.size(); ++i)
              to[i] = static_cast<float>(middle + size * Draw{11, Purpose::kTest, tensor, i}.normal());
          })};
}

ModelConfig tape_config() {
  ModelConfig c = small_config(3);
  c.hidden_dim = 16, c.intermediate_dim = 20, c.q_heads = 4, c.kv_heads = 2, c.head_dim = 8, c.vocab_size = 40;
  return c;
}

ModelConfig llama3_config() {
  ModelConfig c = tape_config();
  c.rope_base = 100;
  c.rope_scaling.kind = RopeScaling::Kind::kLlama3;
  c.rope_scaling.factor = 4, c.rope_scaling.original_tokens = 40, c.rope_scaling.high_freq_factor = 4;
  return c;
}

ModelConfig qwen_config() {
  ModelConfig c = tape_config();
  c.type = "qwen3", c.qk_norm = c.qkv_bias = true, c.kv_heads = 4;
  return c;
}

ModelConfig windowed_config() {
  ModelConfig c = tape_config();
  c.kv_heads = 1, c.windows = {0, 4, 9};
  return c;
}

// The layers after a place in the model, in double, over the cached keys and values of `kv` before the last `tokens`.
class RestOfModel {
 public:
  RestOfModel(const Transformer& model, const KvState& kv, std::int64_t tokens)
      : c_(model.config()), w_(model.weights()), kv_(kv), n_(tokens) {
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < n_; ++t) positions.push_back(static_cast<std::int32_t>(kv.tokens - n_ + t));
    cos_.resize(size_of(n_ * c_.head_dim / 2)), sin_.resize(cos_.size());
    Rotary({c_.rope_base, c_.rope_scaling}, c_.head_dim).fill(positions, cos_.data(), sin_.data());
  }

  // Phi, of the stream [tokens, hidden_dim] between the attention and the MLP of `layer`.
  [[nodiscard]] double phi(std::int32_t layer, Doubles stream) const {
    add_mlp(layer, stream);
    for (std::int32_t l = layer + 1; l < c_.layers; ++l) add_attention(l, stream), add_mlp(l, stream);
    double sum = 0;
    for (const double x : stream) sum += x * x;
    return sum;
  }

 private:
  [[nodiscard]] Doubles normed(const Doubles& x, Weight weight) const {
    Doubles y(x.size());
    for (std::size_t at = 0; at < x.size(); at += weight.size()) {
      double square = 0;
      for (std::size_t i = 0; i < weight.size(); ++i) square += x[at + i] * x[at + i];
      const double r = std::sqrt(square / static_cast<double>(weight.size()) + static_cast<double>(c_.norm_epsilon));
      for (std::size_t i = 0; i < weight.size(); ++i) y[at + i] = x[at + i] / r * static_cast<double>(weight[i]);
    }
    return y;
  }
  [[nodiscard]] Doubles product(const Doubles& x, Weight w, Weight bias) const {
    const std::size_t in = x.size() / size_of(n_), out = w.size() / in;
    Doubles y(size_of(n_) * out);
    for (std::size_t t = 0; t < size_of(n_); ++t)
      for (std::size_t o = 0; o < out; ++o) {
        double sum = bias.empty() ? 0 : static_cast<double>(bias[o]);
        for (std::size_t i = 0; i < in; ++i) sum += static_cast<double>(w[o * in + i]) * x[t * in + i];
        y[t * out + o] = sum;
      }
    return y;
  }
  void rotate(Doubles& x, std::int32_t heads) const {
    const auto half = size_of(c_.head_dim / 2);
    for (std::size_t t = 0; t < size_of(n_); ++t)
      for (std::size_t h = 0; h < size_of(heads); ++h)
        for (std::size_t i = 0; i < half; ++i) {
          double *const low = &x[(t * size_of(heads) + h) * 2 * half + i], a = *low, b = low[half];
          const double cos = static_cast<double>(cos_[t * half + i]), sin = static_cast<double>(sin_[t * half + i]);
          *low = a * cos - b * sin, low[half] = b * cos + a * sin;
        }
  }
  void add_mlp(std::int32_t layer, Doubles& stream) const {
    const LayerWeights& w = w_.layers[size_of(layer)];
    const Doubles in = normed(stream, w.mlp_norm), up = product(in, w.up, w.up_bias);
    Doubles gate = product(in, w.gate, w.gate_bias);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    add(product(gate, w.down, w.down_bias), stream);
  }
  static void add(const Doubles& branch, Doubles& stream) {
    for (std::size_t i = 0; i < stream.size(); ++i) stream[i] += branch[i];
  }
  void add_attention(std::int32_t layer, Doubles& stream) const {
    const LayerWeights& w = w_.layers[size_of(layer)];
    const Doubles in = normed(stream, w.attention_norm), own_v = product(in, w.v, w.v_bias);
    Doubles q = product(in, w.q, w.q_bias), own_k = product(in, w.k, w.k_bias);
    if (c_.qk_norm) q = normed(q, w.q_norm), own_k = normed(own_k, w.k_norm);
    rotate(q, c_.q_heads), rotate(own_k, c_.kv_heads);
    Doubles k(kv_.k[size_of(layer)].begin(), kv_.k[size_of(layer)].end()), v(kv_.v[size_of(layer)].begin(), kv_.v[size_of(layer)].end());
    std::copy(own_k.begin(), own_k.end(), k.end() - std::ssize(own_k));
    std::copy(own_v.begin(), own_v.end(), v.end() - std::ssize(own_v));
    Doubles out(q.size());
    for (std::int64_t t = 0; t < n_; ++t)
      for (std::int64_t h = 0; h < c_.q_heads; ++h) attend(t, h, c_.window(layer), q, k, v, out);
    add(product(out, w.o, w.o_bias), stream);
  }
  void attend(std::int64_t t, std::int64_t head, std::int64_t window, const Doubles& q, const Doubles& k, const Doubles& v,
              Doubles& out) const {
    const std::int64_t d = c_.head_dim, end = kv_.tokens - n_ + t + 1, begin = window == 0 ? 0 : std::max<std::int64_t>(0, end - window);
    const auto own = size_of((t * c_.q_heads + head) * d);
    const auto at = [&](std::int64_t i) { return size_of((i * c_.kv_heads + head / (c_.q_heads / c_.kv_heads)) * d); };
    double total = 0;
    Doubles sum(size_of(d));
    for (std::int64_t i = begin; i < end; ++i) {
      double z = 0;
      for (std::size_t x = 0; x < size_of(d); ++x) z += q[own + x] * k[at(i) + x];
      const double p = std::exp(z / std::sqrt(static_cast<double>(d)));
      total += p;
      for (std::size_t x = 0; x < size_of(d); ++x) sum[x] += p * v[at(i) + x];
    }
    for (std::size_t x = 0; x < size_of(d); ++x) out[own + x] = sum[x] / total;
  }

  const ModelConfig& c_;
  const ModelWeights& w_;
  const KvState& kv_;
  std::int64_t n_;
  std::vector<float> cos_, sin_;
};

struct Streams final : Recorder {
  std::map<std::int32_t, Doubles> at;
  void on_residual(std::int32_t stage, std::span<const float> residual) override { at[stage].assign(residual.begin(), residual.end()); }
};

class GradientTapeOf : public testing::TestWithParam<ModelConfig> {};

TEST_P(GradientTapeOf, EqualsCentralDifferences) {
  const Transformer model = tape_model(GetParam());
  KvState kv(model.config());
  forward(model, std::vector<std::int32_t>{1, 7, 22, 3, 9, 30, 2, 11, 5}, kv);
  Streams streams;
  GradientTape tape(model, &streams);
  forward(model, std::vector<std::int32_t>{4, 22, 17, 8, 39, 1}, kv, &tape);
  const RestOfModel rest(model, kv, 6);
  double sum = 0;
  for (const double x : streams.at.at(2 * model.config().layers)) sum += x * x;
  std::int32_t seen = 0;
  tape.backward(kv, [&](std::int32_t layer, std::span<const float> gradient) {
    const Doubles stream = streams.at.at(2 * layer + 1);
    EXPECT_NEAR(rest.phi(layer, stream), sum, 1e-4 * sum) << "the two forward passes agree";
    EXPECT_EQ(layer, model.config().layers - ++seen);
    ASSERT_EQ(gradient.size(), stream.size());
    double largest = 0;
    for (const float g : gradient) largest = std::max(largest, std::abs(static_cast<double>(g)));
    for (std::size_t i = 0; i < stream.size(); ++i) {
      constexpr double kStep = 1e-4;
      Doubles more = stream, less = stream;
      more[i] += kStep, less[i] -= kStep;
      const double slope = (rest.phi(layer, more) - rest.phi(layer, less)) / (2 * kStep);
      EXPECT_NEAR(static_cast<double>(gradient[i]), slope, 2e-5 * largest) << "layer " << layer << " number " << i;
    }
  });
  EXPECT_EQ(seen, model.config().layers);
}

INSTANTIATE_TEST_SUITE_P(Models, GradientTapeOf, testing::Values(llama3_config(), qwen_config(), windowed_config()), [](const auto& info) {
  return info.index == 0 ? "Llama3" : info.index == 1 ? "Qwen3" : "Windowed";
});

// Blocks of 64 queries, and a prompt of many.
TEST(GradientTape, PassOfManyTokensEqualsTheNormsOfItsGradients) {
  const Transformer model = tape_model(llama3_config());
  std::vector<std::int32_t> prompt, ids;
  for (std::int32_t i = 0; i < 150; ++i) prompt.push_back(i * 7 % 40);
  for (std::int32_t i = 0; i < 130; ++i) ids.push_back(i * 11 % 40);
  KvState kv(model.config());
  forward(model, prompt, kv);
  Streams streams;
  GradientTape tape(model, &streams);
  forward(model, ids, kv, &tape);
  const RestOfModel rest(model, kv, 130);
  const std::vector<std::vector<float>> norms = tape.norms(kv);
  tape.backward(kv, [&](std::int32_t layer, std::span<const float> gradient) {
    const Doubles stream = streams.at.at(2 * layer + 1);
    // Along the gradient Phi grows by the norm of the gradient.
    double square = 0;
    for (const float g : gradient) square += static_cast<double>(g) * static_cast<double>(g);
    double of_tokens = 0;
    for (const float x : norms[size_of(layer)]) of_tokens += static_cast<double>(x) * static_cast<double>(x);
    EXPECT_NEAR(of_tokens, square, 1e-5 * square);
    const double step = 1e-4 / std::sqrt(square);
    Doubles more = stream, less = stream;
    for (std::size_t i = 0; i < stream.size(); ++i)
      more[i] += step * static_cast<double>(gradient[i]), less[i] -= step * static_cast<double>(gradient[i]);
    EXPECT_NEAR((rest.phi(layer, more) - rest.phi(layer, less)) / (2 * step), square, 1e-4 * square) << "layer " << layer;
    EXPECT_EQ(norms[size_of(layer)].size(), 130U);
  });
}

}  // namespace
}  // namespace kvlab::test
