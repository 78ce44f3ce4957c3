// In the shapes of Llama-3.1-8B.
#include "calibrate/cases/model_checks.h"
#include "calibrate/cases/registry.h"

namespace kvlab {

namespace {

constexpr ElementType kTypes[] = {ElementType::kBf16, ElementType::kF16};

KernelFamily linear(ElementType type) {
  OpRecipe<DeviceLinear> recipe;
  recipe.type = type;
  recipe.build = [](Buffers& b, const Shape& s) {
    DeviceLinear a;
    a.tokens = s.at("tokens"), a.out_dim = s.at("out"), a.in_dim = s.at("in"), a.type = b.type();
    a.x = b.activations().elements(a.tokens * a.in_dim), a.w = b.elements(a.out_dim * a.in_dim);
    a.y = b.activations().element_room(a.tokens * a.out_dim);
    if (s.contains("bias")) a.bias = b.elements(a.out_dim);
    return a;
  };
  recipe.work = work_of_shape<DeviceLinear>;
  recipe.matches = linear_matches<DeviceLinear>;
  std::vector<Shape> shapes;
  for (const auto& [out, in] : {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}})
    for (const std::int64_t tokens : {1, 64, 1024, 8192}) shapes.push_back({{"tokens", tokens}, {"out", out}, {"in", in}});
  KernelFamily f =
      gpu_family("linear", type, {{"tokens", "m"}, {"out", "n"}, {"in", "k"}}, shapes, {{{"tokens", 3}, {"out", 24}, {"in", 32}}});
  f.prepare = preparing(recipe);
  return f;
}

KernelFamily rmsnorm(ElementType type) {
  OpRecipe<DeviceRmsNorm> recipe;
  recipe.type = type;
  recipe.build = [](Buffers& b, const Shape& s) {
    DeviceRmsNorm a;
    a.tokens = s.at("tokens"), a.width = s.at("width"), a.type = b.type();
    a.in = b.activations().elements(a.tokens * a.width), a.residual = b.activations().elements(a.tokens * a.width);
    a.weight = b.elements(a.width), a.out = b.activations().element_room(a.tokens * a.width);
    return a;
  };
  recipe.work = work_of_shape<DeviceRmsNorm>;
  recipe.matches = rmsnorm_matches<DeviceRmsNorm>;
  const auto shape = [](std::int64_t tokens) { return Shape{{"tokens", tokens}, {"width", 4096}}; };
  KernelFamily f = gpu_family("rmsnorm", type, {{"tokens", "t"}, {"width", "w"}}, {shape(1), shape(64), shape(8192), shape(65536)},
                              {{{"tokens", 3}, {"width", 40}}});
  f.prepare = preparing(recipe);
  return f;
}

KernelFamily rope(ElementType type) {
  OpRecipe<DeviceRope> recipe;
  recipe.type = type;
  recipe.build = [](Buffers& b, const Shape& s) {
    DeviceRope a;
    a.tokens = s.at("tokens"), a.heads = s.at("heads"), a.head_dim = s.at("head_dim"), a.type = b.type();
    const Angles angle = angles(a.tokens * a.head_dim / 2);
    a.out = b.activations().elements(a.tokens * a.heads * a.head_dim), a.in = a.out;
    a.cos = b.activations().put(angle.cos), a.sin = b.activations().put(angle.sin);
    return a;
  };
  recipe.work = work_of_shape<DeviceRope>;
  recipe.matches = rope_matches<DeviceRope>;
  const auto shape = [](std::int64_t tokens) { return Shape{{"tokens", tokens}, {"heads", 40}, {"head_dim", 128}}; };
  KernelFamily f = gpu_family("rope", type, {{"tokens", "t"}, {"heads", "h"}, {"head_dim", "d"}},
                              {shape(1), shape(64), shape(8192), shape(32768)}, {{{"tokens", 3}, {"heads", 2}, {"head_dim", 16}}});
  f.prepare = preparing(recipe);
  return f;
}

KernelFamily silu_mul(ElementType type) {
  OpRecipe<DeviceSiluMul> recipe;
  recipe.type = type;
  recipe.build = [](Buffers& b, const Shape& s) {
    DeviceSiluMul a;
    a.tokens = s.at("tokens"), a.width = s.at("width"), a.type = b.type();
    a.in_stride = 2 * a.width;  // side by side, from one product
    a.gate = b.activations().elements(a.tokens * a.in_stride);
    a.up = static_cast<const char*>(a.gate) + a.width * element_bytes(a.type);
    a.out = b.activations().element_room(a.tokens * a.width);
    return a;
  };
  recipe.work = work_of_shape<DeviceSiluMul>;
  recipe.matches = silu_mul_matches<DeviceSiluMul>;
  const auto shape = [](std::int64_t tokens) { return Shape{{"tokens", tokens}, {"width", 14336}}; };
  KernelFamily f =
      gpu_family("silu_mul", type, {{"tokens", "t"}, {"width", "w"}}, {shape(1), shape(64), shape(8192)}, {{{"tokens", 3}, {"width", 24}}});
  f.prepare = preparing(recipe);
  return f;
}

KernelFamily embedding(ElementType type) {
  OpRecipe<DeviceEmbedding> recipe;
  recipe.type = type;
  recipe.build = [](Buffers& b, const Shape& s) {
    DeviceEmbedding a;
    a.tokens = s.at("tokens"), a.width = s.at("width"), a.type = b.type();
    a.ids = b.activations().put(random_ids(b, a.tokens, s.at("vocabulary"))), a.table = b.elements(s.at("vocabulary") * a.width);
    a.out = b.activations().element_room(a.tokens * a.width);
    return a;
  };
  recipe.work = work_of_shape<DeviceEmbedding>;
  recipe.matches = embedding_matches<DeviceEmbedding>;
  const auto shape = [](std::int64_t tokens) { return Shape{{"tokens", tokens}, {"width", 4096}, {"vocabulary", 128256}}; };
  KernelFamily f = gpu_family("embedding", type, {{"tokens", "t"}, {"width", "w"}, {"vocabulary", "v"}},
                              {shape(64), shape(8192), shape(32768)}, {{{"tokens", 5}, {"width", 16}, {"vocabulary", 7}}});
  f.prepare = preparing(recipe);
  return f;
}

KernelFamily sampling(ElementType type) {
  OpRecipe<DeviceSampling> recipe;
  recipe.type = type;
  recipe.build = [](Buffers& b, const Shape& s) {
    DeviceSampling a;
    a.rows = s.at("rows"), a.vocabulary = s.at("vocabulary"), a.type = b.type();
    a.logits = b.activations().elements(a.rows * a.vocabulary), a.token = b.room<std::int32_t>(a.rows);
    a.temperature = b.put(std::vector<float>(static_cast<std::size_t>(a.rows), 0.0F));
    a.key = b.put(std::vector<std::uint64_t>(static_cast<std::size_t>(a.rows), 0));
    return a;
  };
  recipe.work = work_of_shape<DeviceSampling>;
  recipe.matches = sampling_matches<DeviceSampling>;
  const auto shape = [](std::int64_t rows) { return Shape{{"rows", rows}, {"vocabulary", 128256}}; };
  KernelFamily f = gpu_family("sampling", type, {{"rows", "r"}, {"vocabulary", "v"}}, {shape(1), shape(64), shape(512)},
                              {{{"rows", 3}, {"vocabulary", 64}}});
  f.prepare = preparing(recipe);
  return f;
}

}  // namespace

void add_model_cuda_cases(std::vector<KernelFamily>& families) {
  for (const ElementType type : kTypes)
    for (const KernelFamily& f : {linear(type), rmsnorm(type), rope(type), silu_mul(type), embedding(type), sampling(type)})
      families.push_back(f);
  families.push_back(sampling(ElementType::kF32));  // the engine's logits
}

}  // namespace kvlab
