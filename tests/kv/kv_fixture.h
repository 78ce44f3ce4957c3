#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/config/params.h"
#include "base/random.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/rope/rotary.h"
#include "policies/kv/allocator/allocator.h"
#include "policies/kv/cache/kv_store.h"
#include "policies/kv/disposal/disposal.h"
#include "policies/kv/format/format.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/selector/selector.h"
#include "policies/kv/trigger/trigger.h"
#include "tests/kv/plain_math.h"
#include "traces/write_safetensors.h"

namespace kvlab::test {

// A layer with random keys, values and queries for a batch of sequences of one length, ready to hand to a part.
class RandomLayer {
 public:
  RandomLayer(ModelShape shape, std::int32_t num_sequences, std::int32_t tokens, std::uint64_t seed, std::int32_t num_words = 0,
              bool with_data = true)
      : model(shape), store(model, num_sequences, num_words, with_data), ops(with_data ? Ops::Backend::kCpu : Ops::Backend::kShapes) {
    const auto per_kv = static_cast<std::size_t>(tokens * model.kv_heads * model.head_dim);
    const auto per_q = static_cast<std::size_t>(tokens * model.q_heads * model.head_dim);
    for (std::int32_t s = 0; s < num_sequences; ++s) {
      k.push_back(normals(per_kv, seed, 3 * s));
      v.push_back(normals(per_kv, seed, 3 * s + 1));
      q.push_back(normals(per_q, seed, 3 * s + 2));
      store.append(s, with_data ? k.back().data() : nullptr, with_data ? v.back().data() : nullptr, tokens, 0);
      seqs.push_back({s, 0, tokens, tokens, -1, static_cast<std::uint64_t>(s)});
    }
  }

  // The last `count` queries of all tokens so far.
  std::vector<Queries> last_queries(std::int32_t count) const {
    std::vector<Queries> all;
    for (std::size_t s = 0; s < seqs.size(); ++s) {
      const std::int32_t n = seqs[s].end(), w = std::min(count, n);
      all.push_back(
          {store.has_data() ? q[s].data() + static_cast<std::size_t>((n - w) * model.q_heads * model.head_dim) : nullptr, w, n - w});
    }
    return all;
  }

  // A step whose tokens are the newest of the layer, at first the whole prompt; window queries as asked for.
  LayerStep prompt_step(std::int32_t window) {
    window_queries = last_queries(window);
    step_queries = last_queries(1 << 30);
    for (std::size_t s = 0; s < seqs.size(); ++s) {
      Queries& q = step_queries[s];
      const std::int32_t older = q.count - seqs[s].new_tokens;
      if (q.data != nullptr) q.data += static_cast<std::ptrdiff_t>(older) * model.q_heads * model.head_dim;
      q.count -= older, q.first_position += older;
    }
    LayerStep step{ops, model, 0, seqs, store.rows(), {}, 7};
    step.in.window = window_queries;
    step.in.step = step_queries;
    return step;
  }

  static std::vector<float> normals(std::size_t n, std::uint64_t seed, std::int32_t stream) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i)
      x[i] = static_cast<float>(Draw{seed, Purpose::kTest, static_cast<std::uint64_t>(stream), i}.normal());
    return x;
  }

  ModelShape model;
  KvStore store;
  Ops ops;
  std::vector<std::vector<float>> k, v, q;  // per sequence [tokens, heads, head_dim]
  std::vector<SeqStep> seqs;
  std::vector<Queries> window_queries, step_queries;
};

// The scores of a step's tokens.
inline std::vector<float> scored(Scorer& scorer, LayerStep& step) {
  std::vector<float> scores(static_cast<std::size_t>(step.kv.total()));
  scorer.score(step, scores.data());
  return scores;
}

// x [positions, heads, head_dim] with the model's own rotation.
inline std::vector<float> turned(std::vector<float> x, const RopeForm& rope, const std::vector<std::int32_t>& positions, std::int32_t heads,
                                 std::int32_t head_dim) {
  std::vector<float> cos(positions.size() * static_cast<std::size_t>(head_dim / 2)), sin = cos;
  Rotary(rope, head_dim).fill(positions, cos.data(), sin.data());
  run_cpu(Rope{x.data(), x.data(), cos.data(), sin.data(), nullptr, nullptr, std::ssize(positions), heads, head_dim});
  return x;
}

// A registered part and its parameters, as YAML.
struct NamedPart {
  std::string name, parameters;
};
inline void PrintTo(const NamedPart& part, std::ostream* out) { *out << part.name << " " << part.parameters; }

// A registered part from YAML parameters.
template <class Registry>
auto make_part(const std::string& name, const std::string& parameters = "{}") {
  Params p = Params::from_text(parameters, name);
  return Registry::make(name, p, "part");
}

// Scores of a prompt by a registered scorer, which sees the last `window` queries.
inline std::vector<float> scored(RandomLayer& layer, const std::string& name, const std::string& parameters = "{}",
                                 std::int32_t window = 0) {
  LayerStep step = layer.prompt_step(window);
  return scored(*make_part<ScorerRegistry>(name, parameters), step);
}

// Plain loops in double: attention of query t over tokens 0..t, for one query head.
inline std::vector<double> plain_row_of_head(const RandomLayer& layer, std::int32_t sequence, std::int32_t q_head, std::int32_t t) {
  const ModelShape& m = layer.model;
  const auto s = static_cast<std::size_t>(sequence);
  const float* const query = &nth(layer.q[s], (t * m.q_heads + q_head) * m.head_dim);
  std::vector<double> z;
  for (std::int32_t i = 0; i <= t; ++i)
    z.push_back(dot(query, &nth(layer.k[s], (i * m.kv_heads + q_head / m.group()) * m.head_dim), m.head_dim) / std::sqrt(m.head_dim));
  return softmax(z);
}

// The same, mean over the query heads of a KV head.
inline std::vector<double> plain_row(const RandomLayer& layer, std::int32_t sequence, std::int32_t head, std::int32_t t) {
  std::vector<double> mean(static_cast<std::size_t>(t) + 1, 0.0);
  for (std::int32_t g = 0; g < layer.model.group(); ++g) {
    const std::vector<double> p = plain_row_of_head(layer, sequence, head * layer.model.group() + g, t);
    for (std::size_t i = 0; i < p.size(); ++i) mean[i] += p[i] / layer.model.group();
  }
  return mean;
}

// The sums over the rows of the last `window` tokens of a prompt.
inline std::vector<double> plain_window(const RandomLayer& layer, std::int32_t sequence, std::int32_t head, std::int32_t window) {
  const std::int32_t n = layer.seqs[0].new_tokens;
  std::vector<double> sums(static_cast<std::size_t>(n), 0.0);
  for (std::int32_t t = n - window; t < n; ++t) {
    const std::vector<double> p = plain_row(layer, sequence, head, t);
    for (std::size_t i = 0; i < p.size(); ++i) sums[i] += p[i];
  }
  return sums;
}

// A scorer's answer for a prompt that came in one step, both stages; `keep` (same for all rows): null asks the first alone.
inline std::vector<float> scores_after_prompt(RandomLayer& layer, Scorer& scorer, std::int32_t window = 1,
                                              const std::int32_t* keep = nullptr) {
  LayerStep step = layer.prompt_step(window);
  scorer.observe(step);
  std::vector<float> scores(static_cast<std::size_t>(step.kv.total()));
  float* data = layer.ops.computes() ? scores.data() : nullptr;
  scorer.score(step, data);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(step.kv.num_rows), keep == nullptr ? 0 : *keep);
  if (keep != nullptr) scorer.refine(step, counts.data(), data);
  return scores;
}

// Tensors by name, of random numbers where a test sets no others.
class TrainedFile {
 public:
  explicit TrainedFile(std::uint64_t seed = 0, float scale = 1) : seed_(seed), scale_(scale) {}

  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    const std::int64_t n = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    std::vector<float> data = RandomLayer::normals(static_cast<std::size_t>(n), seed_, static_cast<std::int32_t>(tensors_.size()));
    for (float& x : data) x *= scale_;
    add(name, shape, std::move(data));
  }
  void add(const std::string& name, const std::vector<std::int64_t>& shape, std::vector<float> data) {
    tensors_[name] = {shape, std::move(data)};
  }
  std::vector<float>& of(const std::string& name) { return tensors_.at(name).second; }
  // The element in column `column` of the lines of a tensor's last dimension.
  [[nodiscard]] double at(const std::string& name, std::int64_t line, std::int64_t column) const {
    const auto& [shape, data] = tensors_.at(name);
    return double{nth(data, line * shape.back() + column)};
  }
  // The path of a file with these tensors; the next file of the process has the same one.
  [[nodiscard]] std::string file() const {
    const auto path = std::filesystem::temp_directory_path() / ("kvlab_trained_" + std::to_string(::getpid()) + ".safetensors");
    std::vector<TensorToWrite> all;
    for (const auto& [name, tensor] : tensors_) all.push_back({name, "F32", tensor.first, tensor.second.data()});
    write_safetensors(path.string(), all, {});
    return path.string();
  }

 private:
  std::uint64_t seed_;
  float scale_;
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::vector<float>>> tensors_;
};

}  // namespace kvlab::test
