// Model operations on the CPU, float32.
#include <numeric>
#include <vector>

#include "calibrate/cases/model_checks.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"

namespace kvlab {

namespace {

KernelFamily linear() {
  const auto build = [](Buffers& b, const Shape& s) {
    const std::int64_t m = s.at("tokens"), n = s.at("out"), k = s.at("in");
    return Linear{b.activations().floats(m * k), b.floats(n * k), b.activations().room<float>(m * n), nullptr, m, k, n};
  };
  return family_of<Linear>("linear", DeviceKind::kCpu, {{"tokens", "m"}, {"out", "n"}, {"in", "k"}},
                           {{1, 1024, 1024}, {64, 4096, 1024}, {512, 1024, 4096}}, {{3, 20, 33}},
                           {ElementType::kF32, build, work_of_shape<Linear>, linear_matches});
}

// One input, several matrices (q, k, v or gate, up).
struct LinearSet {
  const float* x = nullptr;
  std::int64_t tokens = 0, in_dim = 0;
  std::vector<LinearPart> parts;
  [[nodiscard]] Linear part(std::size_t i) const { return {x, parts[i].w, parts[i].y, nullptr, tokens, in_dim, parts[i].out_dim}; }
};

void run_cpu(const LinearSet& a) {
  run_cpu(LinearGroup{a.x, a.tokens, a.in_dim, a.parts.data(), static_cast<std::int32_t>(a.parts.size())});
}

KernelFamily linear_set() {
  const auto build = [](Buffers& b, const Shape& s) {
    const std::int64_t m = s.at("tokens"), k = s.at("in");
    LinearSet set{b.activations().floats(m * k), m, k, {}};
    for (const char* out : {"first", "second", "third"})
      if (const std::int64_t n = s.at(out); n > 0) set.parts.push_back({b.floats(n * k), b.activations().room<float>(m * n), n, nullptr});
    return set;
  };
  const auto work = [](const LinearSet& set, const Shape&) {
    CaseWork work;
    for (std::size_t i = 0; i < set.parts.size(); ++i) {
      work.bytes += bytes(shape(set.part(i)));
      work.flops += flops(shape(set.part(i)));
    }
    return work;
  };
  const auto matches = [](TimedDevice& device, const LinearSet& set, const Run& run) {
    bool all = true;
    for (std::size_t i = 0; i < set.parts.size(); ++i) all = all && linear_matches(device, set.part(i), run);
    return all;
  };
  return family_of<LinearSet>("linear_set", DeviceKind::kCpu,
                              {{"tokens", "m"}, {"first", "n"}, {"second", "o"}, {"third", "p"}, {"in", "k"}}, {{1, 1024, 256, 256, 1024}},
                              {{3, 20, 12, 0, 33}}, {ElementType::kF32, build, work, matches});
}

KernelFamily rmsnorm() {
  const auto build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), w = s.at("width");
    RmsNorm a;
    a.in = b.activations().floats(t * w), a.residual = b.activations().floats(t * w), a.weight = b.floats(w),
    a.out = b.activations().room<float>(t * w);
    a.tokens = t, a.width = w;
    return a;
  };
  return family_of<RmsNorm>("rmsnorm", DeviceKind::kCpu, {{"tokens", "t"}, {"width", "w"}}, {{1, 4096}, {4096, 1024}}, {{3, 40}},
                            {ElementType::kF32, build, work_of_shape<RmsNorm>, rmsnorm_matches});
}

KernelFamily rope() {
  const auto build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), h = s.at("heads"), d = s.at("head_dim");
    const Angles a = angles(t * d / 2);
    float* const x = b.activations().floats(t * h * d);
    return Rope{x, x, b.activations().put(a.cos), b.activations().put(a.sin), nullptr, nullptr, t, h, d};
  };
  return family_of<Rope>("rope", DeviceKind::kCpu, {{"tokens", "t"}, {"heads", "h"}, {"head_dim", "d"}}, {{1, 40, 128}, {1024, 20, 64}},
                         {{3, 2, 8}}, {ElementType::kF32, build, work_of_shape<Rope>, rope_matches});
}

KernelFamily silu_mul() {
  const auto build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), w = s.at("width");
    return SiluMul{b.activations().floats(t * w), b.activations().floats(t * w), b.activations().room<float>(t * w), t, w};
  };
  return family_of<SiluMul>("silu_mul", DeviceKind::kCpu, {{"tokens", "t"}, {"width", "w"}}, {{1, 14336}, {1024, 2816}}, {{3, 20}},
                            {ElementType::kF32, build, work_of_shape<SiluMul>, silu_mul_matches});
}

KernelFamily embedding() {
  const auto build = [](Buffers& b, const Shape& s) {
    const std::int64_t t = s.at("tokens"), w = s.at("width"), v = s.at("vocabulary");
    return Embedding{b.activations().put(random_ids(b, t, v)), b.floats(v * w), b.activations().room<float>(t * w), t, w};
  };
  return family_of<Embedding>("embedding", DeviceKind::kCpu, {{"tokens", "t"}, {"width", "w"}, {"vocabulary", "v"}}, {{512, 1024, 32000}},
                              {{5, 12, 7}}, {ElementType::kF32, build, work_of_shape<Embedding>, embedding_matches});
}

KernelFamily attention_prefill() {
  const auto build = [](Buffers& b, const Shape& s) {
    AttentionPrefill a;
    Buffers& p = b.activations();  // keys too: earlier chunks were just gathered
    take_prefill_operands(p, s, a);
    a.scratch = p.room<float>(scratch_floats(a));
    return a;
  };
  const auto matches = [](TimedDevice& device, const AttentionPrefill& a, const Run& run) {
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
  return family_of<AttentionPrefill>("attention_prefill", DeviceKind::kCpu, kPrefillAxes, {{1024, 0, 8, 2, 64}, {256, 2048, 8, 2, 64}},
                                     {{5, 3, 4, 2, 16}}, {ElementType::kF32, build, work_of_shape<AttentionPrefill>, matches});
}

KernelFamily sampling() {
  const auto build = [](Buffers& b, const Shape& s) {
    Sampling a;
    a.rows = s.at("rows"), a.vocabulary = s.at("vocabulary");
    a.logits = b.activations().floats(a.rows * a.vocabulary), a.token = b.room<std::int32_t>(a.rows);
    return a;
  };
  return family_of<Sampling>("sampling", DeviceKind::kCpu, {{"rows", "r"}, {"vocabulary", "v"}}, {{16, 32000}}, {{3, 50}},
                             {ElementType::kF32, build, work_of_shape<Sampling>, sampling_matches});
}

}  // namespace

void add_model_cases(std::vector<KernelFamily>& families) {
  for (const KernelFamily& f : {linear(), linear_set(), rmsnorm(), rope(), silu_mul(), embedding(), attention_prefill(), sampling()})
    families.push_back(f);
}

}  // namespace kvlab
