// In the shapes of Llama-3.1-8B.
#include "calibrate/cases/model_checks.h"

namespace kvlab {

namespace {

constexpr ElementType kTypes[] = {ElementType::kBf16, ElementType::kF16};

KernelFamily linear(ElementType type) {
  const auto build = [](Buffers& b, const Shape& s) {
    Linear a;
    a.tokens = s.at("tokens"), a.out_dim = s.at("out"), a.in_dim = s.at("in"), a.type = b.type();
    a.x = b.activations().elements(a.tokens * a.in_dim), a.w = b.elements(a.out_dim * a.in_dim);
    a.y = b.activations().element_room(a.tokens * a.out_dim);
    if (s.contains("bias")) a.bias = b.elements(a.out_dim);
    return a;
  };
  ShapeValues shapes;
  for (const auto& [out, in] : {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}})
    for (const std::int64_t tokens : {1, 64, 1024, 8192}) shapes.push_back({tokens, out, in});
  return family_of<Linear>("linear", DeviceKind::kGpu, {{"tokens", "m"}, {"out", "n"}, {"in", "k"}}, shapes, {{3, 24, 32}},
                           {type, build, work_of_shape<Linear>, linear_matches});
}

KernelFamily rmsnorm(ElementType type) {
  const auto build = [](Buffers& b, const Shape& s) {
    RmsNorm a;
    a.tokens = s.at("tokens"), a.width = s.at("width"), a.type = b.type();
    a.in = b.activations().elements(a.tokens * a.width), a.residual = b.activations().elements(a.tokens * a.width);
    a.weight = b.elements(a.width), a.out = b.activations().element_room(a.tokens * a.width);
    return a;
  };
  return family_of<RmsNorm>("rmsnorm", DeviceKind::kGpu, {{"tokens", "t"}, {"width", "w"}},
                            {{1, 4096}, {64, 4096}, {8192, 4096}, {65536, 4096}}, {{3, 40}},
                            {type, build, work_of_shape<RmsNorm>, rmsnorm_matches});
}

KernelFamily rope(ElementType type) {
  const auto build = [](Buffers& b, const Shape& s) {
    Rope a;
    a.tokens = s.at("tokens"), a.heads = s.at("heads"), a.head_dim = s.at("head_dim"), a.type = b.type();
    const Angles angle = angles(a.tokens * a.head_dim / 2);
    a.out = b.activations().elements(a.tokens * a.heads * a.head_dim), a.in = a.out;
    a.cos = b.activations().put(angle.cos), a.sin = b.activations().put(angle.sin);
    return a;
  };
  return family_of<Rope>("rope", DeviceKind::kGpu, {{"tokens", "t"}, {"heads", "h"}, {"head_dim", "d"}},
                         {{1, 40, 128}, {64, 40, 128}, {8192, 40, 128}, {32768, 40, 128}}, {{3, 2, 16}},
                         {type, build, work_of_shape<Rope>, rope_matches});
}

KernelFamily silu_mul(ElementType type) {
  const auto build = [](Buffers& b, const Shape& s) {
    SiluMul a;
    a.tokens = s.at("tokens"), a.width = s.at("width"), a.type = b.type();
    a.in_stride = 2 * a.width;  // side by side, from one product
    a.gate = b.activations().elements(a.tokens * a.in_stride);
    a.up = static_cast<const char*>(a.gate) + a.width * element_bytes(a.type);
    a.out = b.activations().element_room(a.tokens * a.width);
    return a;
  };
  return family_of<SiluMul>("silu_mul", DeviceKind::kGpu, {{"tokens", "t"}, {"width", "w"}}, {{1, 14336}, {64, 14336}, {8192, 14336}},
                            {{3, 24}}, {type, build, work_of_shape<SiluMul>, silu_mul_matches});
}

KernelFamily embedding(ElementType type) {
  const auto build = [](Buffers& b, const Shape& s) {
    Embedding a;
    a.tokens = s.at("tokens"), a.width = s.at("width"), a.type = b.type();
    a.ids = b.activations().put(random_ids(b, a.tokens, s.at("vocabulary"))), a.table = b.elements(s.at("vocabulary") * a.width);
    a.out = b.activations().element_room(a.tokens * a.width);
    return a;
  };
  return family_of<Embedding>("embedding", DeviceKind::kGpu, {{"tokens", "t"}, {"width", "w"}, {"vocabulary", "v"}},
                              {{64, 4096, 128256}, {8192, 4096, 128256}, {32768, 4096, 128256}}, {{5, 16, 7}},
                              {type, build, work_of_shape<Embedding>, embedding_matches});
}

KernelFamily sampling(ElementType type) {
  const auto build = [](Buffers& b, const Shape& s) {
    Sampling a;
    a.rows = s.at("rows"), a.vocabulary = s.at("vocabulary"), a.type = b.type();
    a.logits = b.activations().elements(a.rows * a.vocabulary), a.token = b.room<std::int32_t>(a.rows);
    a.temperature = b.put(std::vector<float>(static_cast<std::size_t>(a.rows), 0.0F));
    a.key = b.put(std::vector<std::uint64_t>(static_cast<std::size_t>(a.rows), 0));
    return a;
  };
  return family_of<Sampling>("sampling", DeviceKind::kGpu, {{"rows", "r"}, {"vocabulary", "v"}}, {{1, 128256}, {64, 128256}, {512, 128256}},
                             {{3, 64}}, {type, build, work_of_shape<Sampling>, sampling_matches});
}

}  // namespace

void add_model_cuda_cases(std::vector<KernelFamily>& families) {
  for (const ElementType type : kTypes)
    for (const KernelFamily& f : {linear(type), rmsnorm(type), rope(type), silu_mul(type), embedding(type), sampling(type)})
      families.push_back(f);
  families.push_back(sampling(ElementType::kF32));  // the engine's logits
}

}  // namespace kvlab
