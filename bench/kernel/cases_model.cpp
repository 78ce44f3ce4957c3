// Operations of the model on the CPU, float32.
#include <cmath>

#include "bench/kernel/op_case.h"
#include "bench/kernel/registry.h"
#include "kernels/attention_prefill/attention_prefill.h"
#include "kernels/embedding/embedding.h"
#include "kernels/linear/linear.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/silu_mul/silu_mul.h"

namespace kvlab {

namespace {

using Run = std::function<void()>;

bool linear_matches(Device& device, const Linear& a, const Run& run) {
  run();
  RelativeError error;
  for (const std::int64_t t : sampled(a.tokens, 4)) {
    const std::vector<float> x = read_floats(device, a.x + t * a.in_dim, a.in_dim);
    for (const std::int64_t o : sampled(a.out_dim, 16)) {
      const std::vector<float> w = read_floats(device, a.w + o * a.in_dim, a.in_dim);
      double sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(x[i]) * static_cast<double>(w[i]);
      error.add(read_floats(device, a.y + t * a.out_dim + o, 1)[0], sum);
    }
  }
  return error.below(tolerance_of(ElementType::kF32));
}

KernelFamily linear() {
  OpRecipe<Linear> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t m = s.at("tokens"), n = s.at("out"), k = s.at("in");
    return Linear{b.floats(m * k), b.floats(n * k), b.room<float>(m * n), m, k, n};
  };
  recipe.work = work_of_shape<Linear>;
  recipe.matches = linear_matches;
  return {"linear",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "m"}, {"out", "n"}, {"in", "k"}},
          {{{"tokens", 1}, {"out", 1024}, {"in", 1024}},
           {{"tokens", 64}, {"out", 4096}, {"in", 1024}},
           {{"tokens", 512}, {"out", 1024}, {"in", 4096}}},
          {{{"tokens", 3}, {"out", 20}, {"in", 33}}},
          preparing(recipe)};
}

bool rmsnorm_matches(Device& device, const RmsNorm& a, const Run& run) {
  const std::vector<float> in = read_floats(device, a.in, a.tokens * a.width), before = read_floats(device, a.residual, a.tokens * a.width);
  run();
  const std::vector<float> weight = read_floats(device, a.weight, a.width);
  RelativeError error;
  for (const std::int64_t t : sampled(a.tokens, 8)) {
    const std::vector<float> out = read_floats(device, a.out + t * a.width, a.width);
    double squares = 0;
    for (std::int64_t i = 0; i < a.width; ++i) {
      const auto at = static_cast<std::size_t>(t * a.width + i);
      squares += std::pow(static_cast<double>(in[at]) + static_cast<double>(before[at]), 2);
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(a.width) + static_cast<double>(a.epsilon));
    for (std::int64_t i = 0; i < a.width; ++i) {
      const auto at = static_cast<std::size_t>(t * a.width + i), c = static_cast<std::size_t>(i);
      error.add(out[c], (static_cast<double>(in[at]) + static_cast<double>(before[at])) * scale * static_cast<double>(weight[c]));
    }
  }
  return error.below(tolerance_of(ElementType::kF32));
}

KernelFamily rmsnorm() {
  OpRecipe<RmsNorm> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), w = s.at("width");
    RmsNorm a;
    a.in = b.floats(t * w), a.residual = b.floats(t * w), a.weight = b.floats(w), a.out = b.room<float>(t * w), a.tokens = t, a.width = w;
    return a;
  };
  recipe.work = work_of_shape<RmsNorm>;
  recipe.matches = rmsnorm_matches;
  return {"rmsnorm",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "t"}, {"width", "w"}},
          {{{"tokens", 1}, {"width", 4096}}, {{"tokens", 4096}, {"width", 1024}}},
          {{{"tokens", 3}, {"width", 40}}},
          preparing(recipe)};
}

bool rope_matches(Device& device, const Rope& a, const Run& run) {
  const std::int64_t half = a.head_dim / 2;
  const std::vector<float> before = read_floats(device, a.x, a.tokens * a.heads * a.head_dim);
  run();
  RelativeError error;
  for (const std::int64_t t : sampled(a.tokens, 8)) {
    const std::vector<float> cos = read_floats(device, a.cos + t * half, half), sin = read_floats(device, a.sin + t * half, half);
    const std::int64_t row = t * a.heads * a.head_dim;
    const std::vector<float> after = read_floats(device, a.x + row, a.heads * a.head_dim);
    for (std::int64_t i = 0; i < a.heads * half; ++i) {
      const std::int64_t c = i % half, at = i / half * a.head_dim + c;
      const double x = before[static_cast<std::size_t>(row + at)], y = before[static_cast<std::size_t>(row + at + half)];
      const double u = cos[static_cast<std::size_t>(c)], v = sin[static_cast<std::size_t>(c)];
      error.add(after[static_cast<std::size_t>(at)], x * u - y * v);
      error.add(after[static_cast<std::size_t>(at + half)], y * u + x * v);
    }
  }
  return error.below(tolerance_of(ElementType::kF32));
}

KernelFamily rope() {
  OpRecipe<Rope> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), h = s.at("heads"), d = s.at("head_dim");
    std::vector<float> cos, sin;
    for (std::int64_t i = 0; i < t * d / 2; ++i) {
      const double angle = 0.1 * static_cast<double>(i % 1009);
      cos.push_back(static_cast<float>(std::cos(angle))), sin.push_back(static_cast<float>(std::sin(angle)));
    }
    return Rope{b.floats(t * h * d), b.put(cos), b.put(sin), t, h, d};
  };
  recipe.work = work_of_shape<Rope>;
  recipe.matches = rope_matches;
  return {"rope",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "t"}, {"heads", "h"}, {"head_dim", "d"}},
          {{{"tokens", 1}, {"heads", 40}, {"head_dim", 128}}, {{"tokens", 1024}, {"heads", 20}, {"head_dim", 64}}},
          {{{"tokens", 3}, {"heads", 2}, {"head_dim", 8}}},
          preparing(recipe)};
}

bool silu_mul_matches(Device& device, const SiluMul& a, const Run& run) {
  run();
  RelativeError error;
  for (const std::int64_t t : sampled(a.tokens, 8)) {
    const std::vector<float> gate = read_floats(device, a.gate + t * a.width, a.width),
                             up = read_floats(device, a.up + t * a.width, a.width);
    const std::vector<float> out = read_floats(device, a.out + t * a.width, a.width);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double x = gate[i];
      error.add(out[i], x / (1 + std::exp(-x)) * static_cast<double>(up[i]));
    }
  }
  return error.below(tolerance_of(ElementType::kF32));
}

KernelFamily silu_mul() {
  OpRecipe<SiluMul> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), w = s.at("width");
    return SiluMul{b.floats(t * w), b.floats(t * w), b.room<float>(t * w), t, w};
  };
  recipe.work = work_of_shape<SiluMul>;
  recipe.matches = silu_mul_matches;
  return {"silu_mul",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "t"}, {"width", "w"}},
          {{{"tokens", 1}, {"width", 14336}}, {{"tokens", 1024}, {"width", 2816}}},
          {{{"tokens", 3}, {"width", 20}}},
          preparing(recipe)};
}

bool embedding_matches(Device& device, const Embedding& a, const Run& run) {
  run();
  const std::vector<std::int32_t> ids = read_values(device, a.ids, a.tokens);
  for (const std::int64_t t : sampled(a.tokens, 64)) {
    const std::vector<float> out = read_floats(device, a.out + t * a.width, a.width);
    if (out != read_floats(device, a.table + ids[static_cast<std::size_t>(t)] * a.width, a.width)) return false;
  }
  return true;
}

KernelFamily embedding() {
  OpRecipe<Embedding> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), w = s.at("width"), v = s.at("vocabulary");
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < t; ++i) ids.push_back(static_cast<std::int32_t>(b.draw() % static_cast<std::uint64_t>(v)));
    return Embedding{b.put(ids), b.floats(v * w), b.room<float>(t * w), t, w};
  };
  recipe.work = work_of_shape<Embedding>;
  recipe.matches = embedding_matches;
  return {"embedding",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "t"}, {"width", "w"}, {"vocabulary", "v"}},
          {{{"tokens", 512}, {"width", 1024}, {"vocabulary", 32000}}},
          {{{"tokens", 5}, {"width", 12}, {"vocabulary", 7}}},
          preparing(recipe)};
}

// Query t, head h in float64.
void check_query(Device& device, const AttentionPrefill& a, std::int64_t t, std::int64_t h, RelativeError& error) {
  const std::int64_t d = a.head_dim, g = h * a.kv_heads / a.q_heads, keys = a.kv_before + t + 1;
  const std::vector<float> q = read_floats(device, a.q + (t * a.q_heads + h) * d, d),
                           out = read_floats(device, a.out + (t * a.q_heads + h) * d, d);
  const std::vector<float> k = read_floats(device, a.k, keys * a.kv_heads * d), v = read_floats(device, a.v, keys * a.kv_heads * d);
  const auto at = [&](std::int64_t i, std::int64_t c) { return static_cast<std::size_t>((i * a.kv_heads + g) * d + c); };
  std::vector<double> mean(static_cast<std::size_t>(d));
  double sum = 0;
  for (std::int64_t i = 0; i < keys; ++i) {
    double logit = 0;
    for (std::int64_t c = 0; c < d; ++c) logit += static_cast<double>(q[static_cast<std::size_t>(c)]) * static_cast<double>(k[at(i, c)]);
    const double p = std::exp(logit * static_cast<double>(a.scale));
    sum += p;
    for (std::int64_t c = 0; c < d; ++c) mean[static_cast<std::size_t>(c)] += p * static_cast<double>(v[at(i, c)]);
  }
  for (std::size_t c = 0; c < mean.size(); ++c) error.add(out[c], mean[c] / sum);
}

KernelFamily attention_prefill() {
  OpRecipe<AttentionPrefill> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    AttentionPrefill a;
    a.new_tokens = s.at("new"), a.kv_before = s.at("before"), a.q_heads = s.at("q_heads"), a.kv_heads = s.at("kv_heads"),
    a.head_dim = s.at("head_dim");
    const std::int64_t q = a.new_tokens * a.q_heads * a.head_dim, kv = (a.kv_before + a.new_tokens) * a.kv_heads * a.head_dim;
    a.q = b.floats(q), a.k = b.floats(kv), a.v = b.floats(kv), a.out = b.room<float>(q);
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
    a.scratch = b.room<float>(scratch_floats(a));
    return a;
  };
  recipe.work = work_of_shape<AttentionPrefill>;
  recipe.matches = [](Device& device, const AttentionPrefill& a, const Run& run) {
    run();
    RelativeError error;
    for (const std::int64_t t : sampled(a.new_tokens, 3))
      for (const std::int64_t h : sampled(a.q_heads, 2)) check_query(device, a, t, h, error);
    return error.below(tolerance_of(ElementType::kF32));
  };
  return {"attention_prefill",
          "f32",
          DeviceKind::kCpu,
          {{"new", "m"}, {"before", "n"}, {"q_heads", "q"}, {"kv_heads", "kv"}, {"head_dim", "d"}},
          {{{"new", 1024}, {"before", 0}, {"q_heads", 8}, {"kv_heads", 2}, {"head_dim", 64}},
           {{"new", 256}, {"before", 2048}, {"q_heads", 8}, {"kv_heads", 2}, {"head_dim", 64}}},
          {{{"new", 5}, {"before", 3}, {"q_heads", 4}, {"kv_heads", 2}, {"head_dim", 16}}},
          preparing(recipe)};
}

}  // namespace

void add_model_cases(std::vector<KernelFamily>& families) {
  for (const KernelFamily& f : {linear(), rmsnorm(), rope(), silu_mul(), embedding(), attention_prefill()}) families.push_back(f);
}

}  // namespace kvlab
