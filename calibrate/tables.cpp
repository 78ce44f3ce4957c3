#include "calibrate/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/ceil_div.h"
#include "base/error.h"
#include "engine/device/plain_decoder.h"

namespace kvlab {

namespace {

using TableKind = CalibrationTable::Kind;

// 1, then powers of `factor` from `second` on, and the largest.
std::vector<std::int64_t> counts_to(std::int64_t most, std::int64_t second, std::int64_t factor) {
  std::vector<std::int64_t> counts{1};
  for (std::int64_t n = second; n < most; n *= factor) counts.push_back(n);
  if (most > 1) counts.push_back(most);
  return counts;
}

// A CPU's dense layers change algorithm at 2, 12 to 24 and 48 tokens, by width, and fill vectors of 16 in between.
std::vector<std::int64_t> token_counts(std::int64_t most, DeviceKind kind) {
  if (kind == DeviceKind::kGpu) return counts_to(most, 16, 4);
  std::vector<std::int64_t> counts;
  for (const std::int64_t n : {1, 2, 4, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192})
    if (n < most) counts.push_back(n);
  counts.push_back(most);
  return counts;
}

struct TableMaker {
  const ModelSpec& m;
  DeviceKind kind;
  const CalibrationLimits& limits;
  std::string format;
  std::vector<CalibrationTable> tables;

  CalibrationTable& add(const Operation& o, TableKind table_kind) {
    const bool is_gpu = kind == DeviceKind::kGpu;
    CalibrationTable t;
    t.name = is_gpu && !o.gpu_table.empty() ? o.gpu_table : o.name, t.op = o.op, t.kind = table_kind, t.device = kind;
    t.family = is_gpu ? o.gpu : o.cpu, t.format = is_gpu && !o.gpu_format.empty() ? std::string(o.gpu_format) : format;
    t.most_copies = m.layers;
    if (o.streams) stream(t);
    tables.push_back(t);
    return tables.back();
  }
  // They recur after all of the model's weights and the step's KV.
  void stream(CalibrationTable& t) const {
    const std::int64_t element = kind == DeviceKind::kGpu ? 2 : 4;
    const std::int64_t heads = (2 * m.q_heads + 2 * m.kv_heads) * m.head_dim;
    t.streamed_bytes_per_token = element * m.layers * 2 * m.kv_heads * m.head_dim;
    t.most_sequences = limits.sequences;
    t.streamed_bytes = element * (m.layers * m.hidden * (heads + 3 * m.intermediate) + m.vocabulary * m.hidden);
    t.most_copies = 1 << 13;
  }
  // K and V over all rows of a layer.
  [[nodiscard]] std::int64_t most_tokens() const {
    const std::int64_t each = 2 * m.kv_heads * m.head_dim * (kind == DeviceKind::kGpu ? 2 : 4);
    return std::max<std::int64_t>(1024, limits.kv_bytes / each);
  }
};

// On a CPU not multiples of a page, to include the last page's cost.
std::vector<std::int64_t> decode_lengths(std::int64_t most, DeviceKind kind) {
  if (kind == DeviceKind::kGpu) return counts_to(most, 128, 4);
  std::vector<std::int64_t> lengths{1};
  for (const std::int64_t n : {37, 150, 600, 2400})
    if (n < most) lengths.push_back(n);
  if (most > 1) lengths.push_back(most);
  return lengths;
}

// As the engine launches them. On a GPU: RoPE and head norms twice, float32 logits, K and V appended from the QKV output.
void add_operation(const Operation& o, TableMaker& make) {
  if (o.op == OpId::kQkNorm && !make.m.qk_norm) return;
  CalibrationTable& t = make.add(o, TableKind::kOp);
  t.covers = o.name, t.per_layer = o.per_layer, t.axis = o.family;
  t.coarse[0] = token_counts(o.family == OpFamily::kTokens ? make.limits.tokens : make.limits.sequences, make.kind);
  if (o.per_layer == 0 && !o.streams) t.most_copies = 1;
  if (o.op == OpId::kQkvProj && make.m.qk_norm) t.family = operation(OpId::kQkvProj).cpu;  // head norms come between: separate products
}

void add_attention(const Operation& o, TableMaker& make) {
  const CalibrationLimits& limits = make.limits;
  if (o.op == OpId::kAttentionPrefill) {
    CalibrationTable& prefill = make.add(o, TableKind::kPrefill);
    prefill.coarse[0] = counts_to(limits.tokens, 16, 4);
    prefill.coarse[0].erase(prefill.coarse[0].begin());
    prefill.coarse[1] = {0};
    for (std::int64_t n = 512; n < limits.length; n *= 4) prefill.coarse[1].push_back(n);
    prefill.coarse[1].push_back(limits.length);
    return;
  }
  CalibrationTable& decode = make.add(o, TableKind::kDecode);
  decode.coarse[0] = counts_to(limits.sequences, 4, 4);
  decode.coarse[1] = decode_lengths(limits.length, make.kind);
  decode.most_product = make.most_tokens();
}

void add_policy(const Operation& o, TableMaker& make) {
  CalibrationTable& t = make.add(o, TableKind::kPolicy);
  t.coarse[0] = counts_to(std::min(make.most_tokens(), 16 * make.limits.length), 64, 4);
  t.coarse[0].erase(t.coarse[0].begin());
}

void add_copy(const Operation& o, TableMaker& make) {
  CalibrationTable& t = make.add(o, TableKind::kCopy);
  for (std::int64_t bytes = 4096; bytes <= 256 << 20; bytes *= 4) t.coarse[0].push_back(bytes);
}

struct Channels {
  std::int64_t out, in;
};
Channels channels_of(OpId op, const ModelSpec& m) {
  const std::int64_t q = m.q_heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  switch (op) {
    case OpId::kQkvProj:
      return {q + 2 * kv, m.hidden};
    case OpId::kOProj:
      return {m.hidden, q};
    case OpId::kGateUpProj:
      return {2 * m.intermediate, m.hidden};
    case OpId::kDownProj:
      return {m.hidden, m.intermediate};
    default:
      return {m.vocabulary, m.embedding_width};  // the head
  }
}

std::int64_t channels_of_part(OpId op, const ModelSpec& m, int i) {
  if (op == OpId::kQkvProj) return (i == 0 ? m.q_heads : m.kv_heads) * m.head_dim;
  return i < 2 ? m.intermediate : 0;
}

// GPU launches include biases; CPU cases do not.
bool has_bias(const CalibrationTable& t, const ModelSpec& m) {
  if (t.format == "f32" || !t.family.starts_with("linear") || t.op == OpId::kLmHead) return false;
  return t.op == OpId::kQkvProj ? m.qkv_bias : t.op == OpId::kOProj ? m.o_bias : m.mlp_bias;
}

// One token per decoding sequence, else tokens of prompts.
std::int64_t sequences_of(const CalibrationTable& t, std::int64_t tokens) {
  return tokens <= t.most_sequences ? tokens : ceil_div(tokens, kContextTokens);
}

std::int64_t norm_width(OpId op, const ModelSpec& m) {
  return op == OpId::kQkNorm ? m.head_dim : op == OpId::kEmbedding ? m.embedding_width : op == OpId::kActFn ? m.intermediate : m.hidden;
}

using AxisValues = std::map<std::string, std::int64_t, std::less<>>;

// CPU head norms take heads for tokens.
AxisValues op_values(const CalibrationTable& t, const ModelSpec& m, std::int64_t n) {
  const Channels channels = channels_of(*t.op, m);
  const bool by_head = t.op == OpId::kQkNorm && t.device == DeviceKind::kCpu;
  return {{"tokens", by_head ? n * (m.q_heads + m.kv_heads) : n},
          {"rows", n},
          {"sequences", sequences_of(t, n)},
          {"out", channels.out},
          {"in", channels.in},
          {"first", channels_of_part(*t.op, m, 0)},
          {"second", channels_of_part(*t.op, m, 1)},
          {"third", channels_of_part(*t.op, m, 2)},
          {"width", norm_width(*t.op, m)},
          {"heads", m.q_heads + m.kv_heads}};
}

// Recipes' defaults: windows of 32 queries, pages of 16 tokens, half of the tokens kept, 4 bits in groups of 32 or of the head. "cast":
// from fp8.
AxisValues policy_values(const ModelSpec& m, const CalibrationPoint& at) {
  const std::int64_t layout = at[1] > 0 ? at[1] : kLayoutTokens, batch = std::max<std::int64_t>(1, at[0] / layout);
  const std::int64_t len = std::max<std::int64_t>(2, at[0] / batch);
  return {{"batch", batch},
          {"rows", batch * m.kv_heads},
          {"len", len},
          {"keep", len / 2},
          {"width", 5},
          {"units", std::max<std::int64_t>(1, len / 16)},
          {"queries", std::min<std::int64_t>(32, len)},
          {"page", 16},
          {"bits", 4},
          {"group", std::min<std::int64_t>(32, m.head_dim)}};
}

AxisValues values_at(const CalibrationTable& t, const ModelSpec& m, const CalibrationPoint& at) {
  switch (t.kind) {
    case TableKind::kOp:
      return op_values(t, m, at[0]);
    case TableKind::kPrefill:
      return {{"new", at[0]}, {"before", at[1]}};
    case TableKind::kDecode:
      return {{"batch", at[0]}, {"len", at[1]}};
    case TableKind::kPolicy:
      return policy_values(m, at);
    case TableKind::kCopy:
    case TableKind::kRecipe:
      return {{"bytes", at[0]}};
  }
  throw InternalError("a kind of table without axes");
}

}  // namespace

CalibrationLimits default_limits(const ModelSpec& model, DeviceKind kind, std::int64_t memory_bytes) {
  CalibrationLimits limits;
  const std::int64_t longest = model.max_tokens > 0 ? model.max_tokens : limits.length;
  if (kind == DeviceKind::kGpu) {
    limits.length = std::min<std::int64_t>(limits.length, longest);
    limits.kv_bytes = std::min(limits.kv_bytes, memory_bytes / 4);
  } else {
    limits.tokens = 2048, limits.sequences = 64, limits.length = std::min<std::int64_t>(8192, longest);
    limits.kv_bytes = std::min(std::int64_t{128} << 20, memory_bytes / 16);
  }
  limits.tokens = std::min(limits.tokens, longest);
  return limits;
}

std::vector<CalibrationTable> calibration_tables(const ModelSpec& m, DeviceKind kind, const CalibrationLimits& limits) {
  const char* const why = m.is_moe()                    ? "experts"
                          : m.learned_positions         ? "learned positions"
                          : !m.gated_mlp                ? "an MLP without a gate"
                          : m.sliding_window != 0       ? "a sliding window"
                          : m.latent.exists()           ? "latent attention"
                          : !m.attention_kinds.empty()  ? "layers of several kinds"
                          : m.norm_bias                 ? "LayerNorm"
                          : !m.quantization.empty()     ? "quantized weights"
                          : m.norms != 2 || m.has_sinks ? "layers of another form"
                                                        : nullptr;
  if (why != nullptr)
    throw InputError(fmt::format("{} has {}, which calibrate does not time; choose a dense Llama-like model", m.name, why));
  TableMaker make{m, kind, limits, kind == DeviceKind::kCpu ? "f32" : m.dtype == Dtype::kFp16 ? "f16" : "bf16", {}};
  for (const Operation& o : kOperations) {
    if ((kind == DeviceKind::kGpu ? o.gpu : o.cpu).empty()) continue;
    const bool over_counts = o.family == OpFamily::kTokens || o.family == OpFamily::kSequences;
    const auto add = over_counts                        ? add_operation
                     : o.family == OpFamily::kAttention ? add_attention
                     : o.family == OpFamily::kCopy      ? add_copy
                                                        : add_policy;
    add(o, make);
  }
  return make.tables;
}

std::int64_t copied_bytes(const CalibrationTable& t, const CalibrationPoint& at) {
  if (!t.is_streamed()) return std::numeric_limits<std::int64_t>::max();
  const bool is_decode = t.kind == TableKind::kDecode;
  const std::int64_t sequences = is_decode ? at[0] : std::min(at[0], t.most_sequences);
  return t.streamed_bytes + sequences * (is_decode ? at[1] : kContextTokens) * t.streamed_bytes_per_token;
}

std::int64_t activation_bytes(const CalibrationTable& t, const ModelSpec& m, const CalibrationPoint& at) {
  if (t.kind == TableKind::kPolicy || t.kind == TableKind::kCopy || t.kind == TableKind::kRecipe) return 0;
  const std::int64_t width =
      3 * m.hidden + 2 * (m.q_heads + m.kv_heads) * m.head_dim + 2 * m.intermediate;  // residual, branch, normed; ...
  return at[0] * width * (t.format == "f32" ? 4 : 2);
}

Rotation rotation_at(const CalibrationTable& t, const ModelSpec& m, const CalibrationPoint& at, const TimedDevice& device) {
  const std::int64_t cold = cold_rotation(device).bytes;
  // Part of three times a cache's size survives rotation.
  const std::int64_t streamed = std::min(std::max(3 * device.cache_bytes(), t.streamed_bytes), device.memory_bytes() / 8);
  return {std::min(t.is_streamed() ? streamed : cold, copied_bytes(t, at)), t.most_copies, std::min(cold, activation_bytes(t, m, at))};
}

Shape shape_at(const CalibrationTable& t, const ModelSpec& m, const CalibrationPoint& at) {
  const KernelFamily* const family = find_family(t.device, t.family, t.format);
  if (family == nullptr) throw InternalError(fmt::format("{}: there is no case {}/{}", t.name, t.family, t.format));
  AxisValues values = values_at(t, m, at);
  values.merge(AxisValues{{"q_heads", m.q_heads}, {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim}, {"vocabulary", m.vocabulary}});
  Shape shape;
  for (const auto& [axis, letter] : family->axes) {
    const auto value = values.find(axis);
    if (value == values.end()) throw InternalError(fmt::format("{}: no value for the axis '{}' of {}", t.name, axis, t.family));
    shape[axis] = value->second;
  }
  if (t.kind == TableKind::kOp && has_bias(t, m)) shape["bias"] = 1;
  if (t.kind == TableKind::kDecode && t.format != "f32") shape["longest"] = PlainDecoder::rounded_tokens(static_cast<std::int32_t>(at[1]));
  return shape;
}

}  // namespace kvlab
