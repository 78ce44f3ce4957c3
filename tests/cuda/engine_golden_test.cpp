#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/safetensors.h"
#include "engine/model/transformer.h"
#include "tests/cuda/engine_fixture.h"

namespace kvlab {
namespace {

// In the working directory where that is a checkout: the program may have been built elsewhere (tests/gpu/pack.sh).
const std::string kProbe = std::filesystem::exists("engine/probe/config.json") ? "engine/probe" : KVLAB_SOURCE_DIR "/engine/probe";

// Log of the softmax, in float64.
std::vector<double> log_softmax(std::span<const float> x) {
  const double most = double{*std::max_element(x.begin(), x.end())};
  double sum = 0;
  for (const float v : x) sum += std::exp(double{v} - most);
  std::vector<double> y;
  for (const float v : x) y.push_back(double{v} - most - std::log(sum));
  return y;
}

struct Difference {
  double kl = 0;                                                 // mean over positions of KL(expected || got), nats
  double noise = 0;                                              // root mean square of the logits' differences
  std::int64_t positions = 0, flipped = 0, flipped_clearly = 0;  // other greedy tokens; those beyond the noise

  void add(std::span<const float> expected, std::span<const float> got, std::size_t vocabulary) {
    double squares = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) squares += std::pow(double{got[i]} - double{expected[i]}, 2);
    noise = std::max(noise, std::sqrt(squares / static_cast<double>(expected.size())));
    for (std::size_t at = 0; at < expected.size(); at += vocabulary) {
      const std::span<const float> e = expected.subspan(at, vocabulary), g = got.subspan(at, vocabulary);
      const std::vector<double> p = log_softmax(e), q = log_softmax(g);
      for (std::size_t i = 0; i < vocabulary; ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
      ++positions;
      const auto chosen = static_cast<std::size_t>(std::max_element(g.begin(), g.end()) - g.begin());
      const float best = *std::max_element(e.begin(), e.end());
      if (e[chosen] == best) continue;
      ++flipped;
      // The margin is a difference of two logits; six deviations of it are out of reach of rounding.
      flipped_clearly += double{best - e[chosen]} > 6 * std::sqrt(2.0) * noise ? 1 : 0;
    }
  }
};

// The probe against Hugging Face's logits in float32: on a GPU over all three prompts and the 64 tokens after each, by the emulator over
// the first of one, more than a page.
TEST_F(CudaTest, ProbeIsNearTheGoldenLogits) {
  const ModelConfig config = read_model_config(kProbe);
  const ModelWeights weights = load_weights(kProbe, config);
  const SafetensorsFile golden = SafetensorsFile::open(kProbe + "/logits_golden.safetensors");
  const auto v = static_cast<std::size_t>(config.vocab_size);
  const bool all = cuda_backend() == CudaBackend::kDevice;
  const auto model = make_device_model(config, weights, {}, ElementType::kBf16);
  const Transformer reference(config, weights);
  Difference prompts, decoded;
  for (int i = 0; i < (all ? 3 : 1); ++i) {
    const std::string name = std::to_string(i);
    std::vector<std::int32_t> ids = golden.ints(name + ".ids");
    std::vector<float> expected = golden.floats(name + ".logits", {static_cast<std::int64_t>(ids.size()), config.vocab_size});
    if (!all) ids.resize(24), expected.resize(ids.size() * v);
    const std::vector<float> got = model->logits(ids, 512);
    prompts.add(expected, got, v);
    if (!all) continue;
    const std::size_t prompt = ids.size();
    const std::vector<std::int32_t> greedy = golden.ints(name + ".greedy");
    ids.insert(ids.end(), greedy.begin(), greedy.end());
    KvState kv(config);
    const std::vector<float> cpu = forward_logits(reference, ids, kv), gpu = model->logits(ids, 512);
    decoded.add(std::span(cpu).subspan(prompt * v), std::span(gpu).subspan(prompt * v), v);
  }
  for (const Difference* d : {&prompts, &decoded}) {
    if (d->positions == 0) continue;
    const double kl = d->kl / static_cast<double>(d->positions);
    std::printf("%lld positions: mean KL %.3g nats, logits off by %.3g (rms), %lld other greedy tokens, %lld of them beyond the noise\n",
                static_cast<long long>(d->positions), kl, d->noise, static_cast<long long>(d->flipped),
                static_cast<long long>(d->flipped_clearly));
    EXPECT_LE(kl, 1e-3);
    EXPECT_GT(kl, 0);
    EXPECT_EQ(d->flipped_clearly, 0);
  }
}

}  // namespace
}  // namespace kvlab
