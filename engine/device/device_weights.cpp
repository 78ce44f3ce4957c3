#include "engine/device/device_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "base/ceil_div.h"
#include "base/error.h"
#include "base/parallel.h"
#include "kernels/device/cuda/events.h"
#include "kernels/device/cuda/memory.h"

namespace kvlab {

namespace {

using Rows = std::initializer_list<Weight>;

template <class T>
void convert_part(std::span<const float> from, std::uint8_t* to) {
  auto* const out = reinterpret_cast<T*>(to);
  for (std::size_t i = 0; i < from.size(); ++i) out[i] = from_float<T>(from[i]);
}

void convert(std::span<const float> from, std::uint8_t* to, ElementType type) {
  constexpr std::size_t kPart = 1 << 18;
  for_each_in_parallel(static_cast<std::int64_t>(ceil_div(from.size(), kPart)), [&](std::int64_t p) {
    const std::size_t begin = static_cast<std::size_t>(p) * kPart;
    const std::span<const float> part = from.subspan(begin, std::min(kPart, from.size() - begin));
    std::uint8_t* const out = to + begin * static_cast<std::size_t>(element_bytes(type));
    if (type == ElementType::kF32) convert_part<float>(part, out);
    if (type == ElementType::kF16) convert_part<f16>(part, out);
    if (type == ElementType::kBf16) convert_part<bf16>(part, out);
  });
}

// Stacks the rows.
DeviceTensor upload(Rows rows, ElementType type, CudaContext& cuda) {
  std::size_t n = 0;
  for (const Weight x : rows) n += x.size();
  if (n == 0) return {};
  std::vector<std::uint8_t> host(n * static_cast<std::size_t>(element_bytes(type)));
  std::uint8_t* to = host.data();
  for (const Weight x : rows) {
    convert(x, to, type);
    to += x.size() * static_cast<std::size_t>(element_bytes(type));
  }
  DeviceTensor tensor(static_cast<std::int64_t>(host.size()));
  tensor.copy_from(host, cuda.stream());
  cuda.synchronize();
  return tensor;
}

void upload_tables(const ModelWeights& w, ElementType type, CudaContext& cuda, DeviceWeights& d) {
  d.embedding = upload({w.embedding}, type, cuda);
  d.final_norm = upload({w.final_norm}, type, cuda);
  d.head = upload({w.untied_head}, type, cuda);
}

DeviceLayerWeights upload_layer(const LayerWeights& w, ElementType type, CudaContext& cuda) {
  DeviceLayerWeights d;
  d.attention_norm = upload({w.attention_norm}, type, cuda);
  d.mlp_norm = upload({w.mlp_norm}, type, cuda);
  d.qkv = upload({w.q, w.k, w.v}, type, cuda);
  d.qkv_bias = upload({w.q_bias, w.k_bias, w.v_bias}, type, cuda);
  d.q_norm = upload({w.q_norm}, type, cuda);
  d.k_norm = upload({w.k_norm}, type, cuda);
  d.o = upload({w.o}, type, cuda);
  d.o_bias = upload({w.o_bias}, type, cuda);
  d.gate_up = upload({w.gate, w.up}, type, cuda);
  d.gate_up_bias = upload({w.gate_bias, w.up_bias}, type, cuda);
  d.down = upload({w.down}, type, cuda);
  d.down_bias = upload({w.down_bias}, type, cuda);
  return d;
}

DeviceTensor repeated(const DeviceTensor& block, std::int64_t n, ElementType type, CudaContext& cuda) {
  DeviceTensor tensor(n * element_bytes(type));
  for (std::int64_t at = 0; at < tensor.bytes(); at += block.bytes())
    cuda::copy_on_device(tensor.data() + at, block.data(), std::min(block.bytes(), tensor.bytes() - at), cuda.stream());
  return tensor;
}

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; }

[[noreturn]] void refuse(const ModelConfig& config, std::int64_t weights, ElementType type, std::int64_t free, const CudaContext& cuda) {
  throw InputError(fmt::format(
      "model '{}' does not fit into the memory of {}: its {:.3g} billion weights in {} take {:.2f} GiB, {:.2f} of {:.2f} GiB are free; "
      "{:.3g} billion weights would fit, with no room for a KV cache",
      config.name, cuda.gpu().name, static_cast<double>(weights) * 1e-9, name_of(type), gib(weights * element_bytes(type)), gib(free),
      gib(cuda.gpu().memory_bytes), static_cast<double>(free) / static_cast<double>(element_bytes(type)) * 1e-9));
}

std::int64_t num_weights(const ModelWeights& w) {
  std::size_t n = w.embedding.size() + w.final_norm.size() + w.untied_head.size();
  for (const LayerWeights& l : w.layers)
    for (const Weight x : Rows{l.attention_norm, l.mlp_norm, l.q, l.k, l.v, l.o, l.gate, l.up, l.down, l.q_bias, l.k_bias, l.v_bias,
                               l.o_bias, l.gate_bias, l.up_bias, l.down_bias, l.q_norm, l.k_norm})
      n += x.size();
  return static_cast<std::int64_t>(n);
}

}  // namespace

WeightParts::WeightParts(const ModelWeights& w)
    : num_weights(kvlab::num_weights(w)),
      tables([&w] {
        return ModelWeights{w.memory, w.embedding, w.final_norm, w.untied_head, {}};
      }),
      layer([&w](std::int32_t l) {
        return ModelWeights{w.memory, {}, {}, {}, {w.layers[static_cast<std::size_t>(l)]}};
      }) {}

WeightParts::WeightParts(const WeightReader& reader)
    : num_weights(reader.num_weights()),
      tables([&reader] { return reader.tables(); }),
      layer([&reader](std::int32_t l) { return reader.layer(l); }) {}

DeviceWeights random_weights(const ModelConfig& c, ElementType type, CudaContext& cuda) {
  constexpr std::int64_t kBlock = 1000003;  // not a multiple of a row
  std::vector<float> numbers;
  std::uint64_t state = 1;
  for (std::int64_t i = 0; i < kBlock; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
    numbers.push_back((static_cast<float>(state >> 40) * 0x1p-24F - 0.5F) * 0.07F);
  }
  const std::vector<float> ones(static_cast<std::size_t>(c.hidden_dim), 1.0F), head_ones(static_cast<std::size_t>(c.head_dim), 1.0F);
  const std::int64_t q_width = c.q_width(), kv_width = c.kv_width();
  const std::int64_t hidden = c.hidden_dim, inner = c.intermediate_dim;
  const std::int64_t layer = hidden * (2 * q_width + 2 * kv_width + 3 * inner), table = std::int64_t{c.vocab_size} * hidden;
  const std::int64_t n = c.layers * layer + table * (c.tied_head ? 1 : 2), free = cuda::free_bytes();
  try {
    const DeviceTensor block = upload({numbers}, type, cuda);
    const auto matrix = [&](std::int64_t size) { return repeated(block, size, type, cuda); };
    DeviceWeights w;
    w.embedding = matrix(table), w.final_norm = upload({ones}, type, cuda);
    if (!c.tied_head) w.head = matrix(table);
    for (std::int32_t l = 0; l < c.layers; ++l) {
      DeviceLayerWeights& d = w.layers.emplace_back();
      d.attention_norm = upload({ones}, type, cuda), d.mlp_norm = upload({ones}, type, cuda);
      if (c.qk_norm) d.q_norm = upload({head_ones}, type, cuda), d.k_norm = upload({head_ones}, type, cuda);
      d.qkv = matrix((q_width + 2 * kv_width) * hidden), d.o = matrix(hidden * q_width);
      d.gate_up = matrix(2 * inner * hidden), d.down = matrix(hidden * inner);
    }
    cuda.synchronize();
    return w;
  } catch (const GpuMemoryError&) {
    refuse(c, n, type, free, cuda);
  }
}

DeviceWeights upload_weights(const ModelConfig& config, const WeightParts& parts, ElementType type, CudaContext& cuda) {
  const std::int64_t n = parts.num_weights, free = cuda::free_bytes();
  if (n * element_bytes(type) > free) refuse(config, n, type, free, cuda);
  try {
    DeviceWeights d;
    upload_tables(parts.tables(), type, cuda, d);
    for (std::int32_t l = 0; l < config.layers; ++l) d.layers.push_back(upload_layer(parts.layer(l).layers[0], type, cuda));
    return d;
  } catch (const GpuMemoryError&) {
    refuse(config, n, type, free, cuda);
  }
}

}  // namespace kvlab
