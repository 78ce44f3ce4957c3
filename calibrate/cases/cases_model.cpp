// Model operations on the CPU, float32.
#include <cmath>
#include <numeric>
#include <vector>

#include "calibrate/cases/model_checks.h"
#include "calibrate/cases/prefill_case.h"
#include "calibrate/cases/registry.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"

namespace kvlab {

namespace {

KernelFamily linear() {
  OpRecipe<Linear> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t m = s.at("tokens"), n = s.at("out"), k = s.at("in");
    return Linear{b.activations().floats(m * k), b.floats(n * k), b.activations().room<float>(m * n), m, k, n};
  };
  recipe.work = work_of_shape<Linear>;
  recipe.matches = linear_matches<Linear>;
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

// One input, several matrices (q, k, v or gate, up), as in the CPU's transformer.
struct LinearSet {
  const float* x = nullptr;
  std::int64_t tokens = 0, in_dim = 0;
  std::vector<LinearPart> parts;
  [[nodiscard]] Linear part(std::size_t i) const { return {x, parts[i].w, parts[i].y, tokens, in_dim, parts[i].out_dim, nullptr}; }
};

void run_cpu(const LinearSet& a) {
  run_cpu(LinearGroup{a.x, a.tokens, a.in_dim, a.parts.data(), static_cast<std::int32_t>(a.parts.size())});
}

KernelFamily linear_set() {
  OpRecipe<LinearSet> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t m = s.at("tokens"), k = s.at("in");
    LinearSet set{b.activations().floats(m * k), m, k, {}};
    for (const char* out : {"first", "second", "third"})
      if (const std::int64_t n = s.at(out); n > 0) set.parts.push_back({b.floats(n * k), b.activations().room<float>(m * n), n, nullptr});
    return set;
  };
  recipe.work = [](const LinearSet& set, const Shape&) {
    CaseWork work;
    for (std::size_t i = 0; i < set.parts.size(); ++i) {
      work.bytes += bytes(shape(set.part(i)));
      work.flops += flops(shape(set.part(i)));
    }
    return work;
  };
  recipe.matches = [](TimedDevice& device, const LinearSet& set, const Run& run) {
    bool all = true;
    for (std::size_t i = 0; i < set.parts.size(); ++i) all = all && linear_matches(device, set.part(i), run);
    return all;
  };
  return {"linear_set",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "m"}, {"first", "n"}, {"second", "o"}, {"third", "p"}, {"in", "k"}},
          {{{"tokens", 1}, {"first", 1024}, {"second", 256}, {"third", 256}, {"in", 1024}}},
          {{{"tokens", 3}, {"first", 20}, {"second", 12}, {"third", 0}, {"in", 33}}},
          preparing(recipe)};
}

KernelFamily rmsnorm() {
  OpRecipe<RmsNorm> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), w = s.at("width");
    RmsNorm a;
    a.in = b.activations().floats(t * w), a.residual = b.activations().floats(t * w), a.weight = b.floats(w),
    a.out = b.activations().room<float>(t * w);
    a.tokens = t, a.width = w;
    return a;
  };
  recipe.work = work_of_shape<RmsNorm>;
  recipe.matches = rmsnorm_matches<RmsNorm>;
  return {"rmsnorm",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "t"}, {"width", "w"}},
          {{{"tokens", 1}, {"width", 4096}}, {{"tokens", 4096}, {"width", 1024}}},
          {{{"tokens", 3}, {"width", 40}}},
          preparing(recipe)};
}

KernelFamily rope() {
  OpRecipe<Rope> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), h = s.at("heads"), d = s.at("head_dim");
    const Angles a = angles(t * d / 2);
    return Rope{b.activations().floats(t * h * d), b.activations().put(a.cos), b.activations().put(a.sin), t, h, d};
  };
  recipe.work = work_of_shape<Rope>;
  recipe.matches = rope_matches<Rope>;
  return {"rope",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "t"}, {"heads", "h"}, {"head_dim", "d"}},
          {{{"tokens", 1}, {"heads", 40}, {"head_dim", 128}}, {{"tokens", 1024}, {"heads", 20}, {"head_dim", 64}}},
          {{{"tokens", 3}, {"heads", 2}, {"head_dim", 8}}},
          preparing(recipe)};
}

KernelFamily silu_mul() {
  OpRecipe<SiluMul> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), w = s.at("width");
    return SiluMul{b.activations().floats(t * w), b.activations().floats(t * w), b.activations().room<float>(t * w), t, w};
  };
  recipe.work = work_of_shape<SiluMul>;
  recipe.matches = silu_mul_matches<SiluMul>;
  return {"silu_mul",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "t"}, {"width", "w"}},
          {{{"tokens", 1}, {"width", 14336}}, {{"tokens", 1024}, {"width", 2816}}},
          {{{"tokens", 3}, {"width", 20}}},
          preparing(recipe)};
}

KernelFamily embedding() {
  OpRecipe<Embedding> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), w = s.at("width"), v = s.at("vocabulary");
    return Embedding{b.activations().put(random_ids(b, t, v)), b.floats(v * w), b.activations().room<float>(t * w), t, w};
  };
  recipe.work = work_of_shape<Embedding>;
  recipe.matches = embedding_matches<Embedding>;
  return {"embedding",
          "f32",
          DeviceKind::kCpu,
          {{"tokens", "t"}, {"width", "w"}, {"vocabulary", "v"}},
          {{{"tokens", 512}, {"width", 1024}, {"vocabulary", 32000}}},
          {{{"tokens", 5}, {"width", 12}, {"vocabulary", 7}}},
          preparing(recipe)};
}

KernelFamily attention_prefill() {
  OpRecipe<AttentionPrefill> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    AttentionPrefill a;
    Buffers& p = b.activations();  // keys too: earlier chunks were just gathered
    take_prefill_operands(p, s, a);
    a.scratch = p.room<float>(scratch_floats(a));
    return a;
  };
  recipe.work = work_of_shape<AttentionPrefill>;
  recipe.matches = [](TimedDevice& device, const AttentionPrefill& a, const Run& run) {
    run();
    RelativeError error;
    for (const std::int64_t t : sampled(a.new_tokens, 3))
      for (const std::int64_t h : sampled(a.q_heads, 2)) {
        std::vector<std::int64_t> seen(static_cast<std::size_t>(a.kv_before + t + 1));
        std::iota(seen.begin(), seen.end(), 0);
        add_prefill_error(device, a, t, h, seen, error);
      }
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

KernelFamily sampling() {
  OpRecipe<Sampling> recipe;
  recipe.build = [](Buffers& b, const Shape& s) {
    Sampling a;
    a.rows = s.at("rows"), a.vocabulary = s.at("vocabulary");
    a.logits = b.activations().floats(a.rows * a.vocabulary), a.token = b.room<std::int32_t>(a.rows);
    return a;
  };
  recipe.work = work_of_shape<Sampling>;
  recipe.matches = sampling_matches<Sampling>;
  return {"sampling",
          "f32",
          DeviceKind::kCpu,
          {{"rows", "r"}, {"vocabulary", "v"}},
          {{{"rows", 16}, {"vocabulary", 32000}}},
          {{{"rows", 3}, {"vocabulary", 50}}},
          preparing(recipe)};
}

}  // namespace

void add_model_cases(std::vector<KernelFamily>& families) {
  for (const KernelFamily& f : {linear(), linear_set(), rmsnorm(), rope(), silu_mul(), embedding(), attention_prefill(), sampling()})
    families.push_back(f);
}

}  // namespace kvlab
