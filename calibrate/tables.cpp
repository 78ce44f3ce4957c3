#include "calibrate/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/ceil_div.h"
#include "base/error.h"
#include "engine/device/plain_decoder.h"

namespace kvlab {

namespace {

using OpAxis = ProfileOp::Axis;
using TableKind = CalibrationTable::Kind;

// 1, then every fourth power of two (a GPU: from a whole tile on), and the largest.
std::vector<std::int64_t> counts_to(std::int64_t most, std::int64_t second, std::int64_t factor) {
  std::vector<std::int64_t> counts{1};
  for (std::int64_t n = second; n < most; n *= factor) counts.push_back(n);
  if (most > 1) counts.push_back(most);
  return counts;
}

// A CPU's dense layers change their way of computing at 2, at 12 to 24 and at 48 tokens, by their width, and fill vectors of 16 between
// these.
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

  CalibrationTable& add(const std::string& name, TableKind table_kind, const std::string& family) {
    CalibrationTable t;
    t.name = name, t.kind = table_kind, t.family = family, t.format = format, t.most_copies = m.layers;
    tables.push_back(t);
    return tables.back();
  }
  CalibrationTable& op(const std::string& name, const std::string& family, int per_layer = 1, OpAxis axis = OpAxis::kTokens) {
    CalibrationTable& t = add(name, TableKind::kOp, family);
    t.covers = name, t.per_layer = per_layer, t.axis = axis;
    t.coarse[0] = token_counts(axis == OpAxis::kTokens ? limits.tokens : limits.sequences, kind);
    if (per_layer == 0) t.most_copies = 1;
    if (family.starts_with("linear") || family.starts_with("append")) stream(t);
    return t;
  }
  // Weights and KV are met again after all of the model's weights and the step's KV have passed through the cache.
  void stream(CalibrationTable& t) const {
    const std::int64_t element = kind == DeviceKind::kGpu ? 2 : 4;
    const std::int64_t heads = (2 * m.q_heads + 2 * m.kv_heads) * m.head_dim;
    t.streamed_bytes_per_token = element * m.layers * 2 * m.kv_heads * m.head_dim;
    t.most_sequences = limits.sequences;
    t.streamed_bytes = element * (m.layers * m.hidden * (heads + 3 * m.intermediate) + m.vocabulary * m.hidden);
    t.most_copies = 1 << 13;
  }
  // Tokens of K and V, over all rows of one layer, that fit the memory allowed.
  [[nodiscard]] std::int64_t most_tokens() const {
    const std::int64_t each = 2 * m.kv_heads * m.head_dim * (kind == DeviceKind::kGpu ? 2 : 4);
    return std::max<std::int64_t>(1024, limits.kv_bytes / each);
  }
};

// On a CPU no multiples of a page: what a sequence's last page costs belongs to it.
std::vector<std::int64_t> decode_lengths(std::int64_t most, DeviceKind kind) {
  if (kind == DeviceKind::kGpu) return counts_to(most, 128, 4);
  std::vector<std::int64_t> lengths{1};
  for (const std::int64_t n : {37, 150, 600, 2400})
    if (n < most) lengths.push_back(n);
  if (most > 1) lengths.push_back(most);
  return lengths;
}

// Operations as the engine on that device launches them. On a GPU that is two launches of RoPE and of norms of heads, logits in float32,
// and K and V that are appended from beside the queries; a table is named for what is timed where an older profile has another one.
void add_operations(TableMaker& make) {
  const bool is_gpu = make.kind == DeviceKind::kGpu, has_norms = make.m.qk_norm;
  make.op("embedding", "embedding", 0);
  make.op("layernorm", "rmsnorm", 2);
  make.op("qkv_proj", is_gpu && !has_norms ? "linear" : "linear_set");  // the CPU's transformer fuses no weights
  if (has_norms) make.op("qk_norm", is_gpu ? "rmsnorm_qk" : "rmsnorm");
  make.op(is_gpu ? "rope_qk" : "rotary_emb", is_gpu ? "rope_qk" : "rope").covers = "rotary_emb";
  make.op("append_kv", is_gpu ? "append_step" : "append_kv");
  make.op("o_proj", "linear");
  make.op("gate_up_proj", is_gpu ? "linear" : "linear_set");
  make.op("act_fn", "silu_mul");
  make.op("down_proj", "linear");
  make.op("final_layernorm", "rmsnorm", 0);
  make.op(is_gpu ? "linear_head" : "lm_head", is_gpu ? "linear_head" : "linear", 0, OpAxis::kSequences).covers = "lm_head";
  make.op("sampler", "sampling", 0, OpAxis::kSequences).format = "f32";
}

void add_attention(TableMaker& make) {
  const CalibrationLimits& limits = make.limits;
  const char* const prompts = make.kind == DeviceKind::kGpu ? "attention_prefill_step" : "attention_prefill";
  CalibrationTable& prefill = make.add("attention_prefill", TableKind::kPrefill, prompts);
  prefill.coarse[0] = counts_to(limits.tokens, 16, 4);
  prefill.coarse[0].erase(prefill.coarse[0].begin());
  prefill.coarse[1] = {0};
  for (std::int64_t n = 512; n < limits.length; n *= 4) prefill.coarse[1].push_back(n);
  prefill.coarse[1].push_back(limits.length);
  CalibrationTable& decode = make.add("attention_decode", TableKind::kDecode, "decode_attention");
  decode.coarse[0] = counts_to(limits.sequences, 4, 4);
  decode.coarse[1] = decode_lengths(limits.length, make.kind);
  decode.most_product = make.most_tokens();
  make.stream(decode);
}

void add_policies(TableMaker& make) {
  for (const char* name : {"top_k", "attention_stats", "pool1d", "token_norms", "anchor_cosine", "page_bounds", "page_scores", "compact",
                           "quantize", "dequantize", "token_copy", "cast", "unsparsify", "low_rank_rebuild", "restore_outliers"}) {
    CalibrationTable& t = make.add(name, TableKind::kPolicy, name);
    const std::string op = name;
    const bool is_f32 = make.kind == DeviceKind::kCpu || op == "top_k" || op == "pool1d" || op == "page_scores";
    t.format = is_f32 ? "f32" : make.format;
    t.coarse[0] = counts_to(std::min(make.most_tokens(), 16 * make.limits.length), 64, 4);
    t.coarse[0].erase(t.coarse[0].begin());
  }
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
  add_operations(make);
  add_attention(make);
  add_policies(make);
  if (kind == DeviceKind::kGpu) {
    for (const std::string_view name : {kHostToDevice, kDeviceToHost}) {
      CalibrationTable& t = make.add(std::string(name), TableKind::kCopy, std::string(name));
      t.format = "pinned";
      for (std::int64_t bytes = 4096; bytes <= 256 << 20; bytes *= 4) t.coarse[0].push_back(bytes);
    }
  }
  return make.tables;
}

namespace {

Shape linear_shape(const std::string& name, const ModelSpec& m, std::int64_t tokens) {
  const std::int64_t q = m.q_heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  if (name == "qkv_proj") return {{"tokens", tokens}, {"out", q + 2 * kv}, {"in", m.hidden}};
  if (name == "o_proj") return {{"tokens", tokens}, {"out", m.hidden}, {"in", q}};
  if (name == "gate_up_proj") return {{"tokens", tokens}, {"out", 2 * m.intermediate}, {"in", m.hidden}};
  if (name == "down_proj") return {{"tokens", tokens}, {"out", m.hidden}, {"in", m.intermediate}};
  return {{"tokens", tokens}, {"out", m.vocabulary}, {"in", m.embedding_width}};  // the head
}

// The engine adds biases in the same launch; the CPU's cases go without.
Shape gpu_linear_shape(const CalibrationTable& t, const ModelSpec& m, Shape shape) {
  const bool has_bias = t.covers != "lm_head" && (t.name == "qkv_proj" ? m.qkv_bias : t.name == "o_proj" ? m.o_bias : m.mlp_bias);
  if (has_bias && t.format != "f32") shape["bias"] = 1;
  return shape;
}

// Tokens at a point are those of so many sequences that decode, or of prompts.
std::int64_t sequences_of(const CalibrationTable& t, std::int64_t tokens) {
  return tokens <= t.most_sequences ? tokens : ceil_div(tokens, kContextTokens);
}

Shape op_shape(const CalibrationTable& t, const ModelSpec& m, std::int64_t n) {
  if (t.family == "linear_set") {
    const bool is_qkv = t.name == "qkv_proj";
    const std::int64_t kv = is_qkv ? m.kv_heads * m.head_dim : 0;
    const Shape set{{"tokens", n},
                    {"first", is_qkv ? m.q_heads * m.head_dim : m.intermediate},
                    {"second", is_qkv ? kv : m.intermediate},
                    {"third", kv},
                    {"in", m.hidden}};
    return gpu_linear_shape(t, m, set);
  }
  if (t.family.starts_with("linear")) return gpu_linear_shape(t, m, linear_shape(t.name, m, n));
  if (t.family == "rope_qk" || t.family == "rmsnorm_qk" || t.family == "append_step") {
    Shape shape{{"tokens", n}, {"q_heads", m.q_heads}, {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim}};
    if (t.family == "append_step") shape["sequences"] = sequences_of(t, n);
    return shape;
  }
  if (t.name == "qk_norm") return {{"tokens", n * (m.q_heads + m.kv_heads)}, {"width", m.head_dim}};
  if (t.family == "rmsnorm") return {{"tokens", n}, {"width", m.hidden}};
  if (t.family == "embedding") return {{"tokens", n}, {"width", m.embedding_width}, {"vocabulary", m.vocabulary}};
  if (t.family == "rope") return {{"tokens", n}, {"heads", m.q_heads + m.kv_heads}, {"head_dim", m.head_dim}};
  if (t.family == "append_kv")
    return {{"tokens", n}, {"sequences", sequences_of(t, n)}, {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim}};
  if (t.family == "silu_mul") return {{"tokens", n}, {"width", m.intermediate}};
  return {{"rows", n}, {"vocabulary", m.vocabulary}};  // sampling
}

// Every operation at what recipes ask of it by default: windows of 32 queries, pages of 16 tokens, half of the tokens kept, 4 bits in
// groups of 32 or of the head; "cast" is its way back, from fp8.
Shape policy_shape(const std::string& op, const ModelSpec& m, const CalibrationPoint& at) {
  const std::int64_t layout = at[1] > 0 ? at[1] : kLayoutTokens, batch = std::max<std::int64_t>(1, at[0] / layout);
  const std::int64_t len = std::max<std::int64_t>(2, at[0] / batch), rows = batch * m.kv_heads;
  if (op == "top_k") return {{"rows", rows}, {"len", len}, {"keep", len / 2}};
  if (op == "pool1d") return {{"rows", rows}, {"len", len}, {"width", 5}};
  Shape shape{{"batch", batch}, {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim}};
  if (op == "page_scores") {
    shape["units"] = std::max<std::int64_t>(1, len / 16), shape["q_heads"] = m.q_heads;
    return shape;
  }
  shape["len"] = len;
  if (op == "attention_stats") shape["queries"] = std::min<std::int64_t>(32, len), shape["q_heads"] = m.q_heads;
  if (op == "page_bounds") shape["page"] = 16;
  if (op == "quantize" || op == "dequantize") shape["bits"] = 4, shape["group"] = std::min<std::int64_t>(32, m.head_dim);
  return shape;
}

}  // namespace

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
  // Caches do not drop the oldest first: of three times their size, met again and again, a part stays. So it is all of the weights.
  const std::int64_t streamed = std::min(std::max(3 * device.cache_bytes(), t.streamed_bytes), device.memory_bytes() / 8);
  return {std::min(t.is_streamed() ? streamed : cold, copied_bytes(t, at)), t.most_copies, std::min(cold, activation_bytes(t, m, at))};
}

Shape shape_at(const CalibrationTable& t, const ModelSpec& m, const CalibrationPoint& at) {
  const Shape heads{{"q_heads", m.q_heads}, {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim}};
  Shape shape;
  switch (t.kind) {
    case TableKind::kOp:
      return op_shape(t, m, at[0]);
    case TableKind::kPrefill:
      shape = {{"new", at[0]}, {"before", at[1]}};
      break;
    case TableKind::kDecode:
      shape = {{"batch", at[0]}, {"len", at[1]}};
      if (t.format != "f32") shape["longest"] = PlainDecoder::rounded_tokens(static_cast<std::int32_t>(at[1]));
      break;
    case TableKind::kPolicy:
      return policy_shape(t.name, m, at);
    case TableKind::kCopy:
    case TableKind::kRecipe:
      return {{"bytes", at[0]}};
  }
  shape.insert(heads.begin(), heads.end());
  return shape;
}

}  // namespace kvlab
