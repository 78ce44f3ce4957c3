// As the GPU engine launches them; timed by `kvlab calibrate`.
#include "base/ceil_div.h"
#include "calibrate/cases/model_checks.h"
#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/device/cuda/device_rows.h"

namespace kvlab {

namespace {

void* at_element(void* data, std::int64_t i, ElementType type) { return static_cast<char*>(data) + i * element_bytes(type); }

// Checked by tests and timed by `kvlab calibrate` only.
template <class Op>
KernelFamily step_family(std::string_view op, const Axes& axes, const ShapeValues& small, const OpRecipe<Op>& recipe) {
  return family_of(op, DeviceKind::kGpu, axes, {}, small, recipe);
}

// In sequence; outputs are adjacent.
struct LinearSet {
  std::vector<Linear> parts;
};
void run_cuda(const LinearSet& set, CudaContext& cuda) {
  for (const Linear& part : set.parts) run_cuda(part, cuda);
}

KernelFamily linear_set(ElementType type) {
  const auto build = [](Buffers& b, const Shape& s) {
    const std::int64_t m = s.at("tokens"), k = s.at("in");
    const void* const x = b.activations().elements(m * k);
    LinearSet set;
    for (const char* out : {"first", "second", "third"}) {
      const std::int64_t n = s.at(out);
      if (n == 0) continue;
      set.parts.push_back({x, b.elements(n * k), b.activations().element_room(m * n), nullptr, m, k, n, b.type()});
      if (s.contains("bias")) set.parts.back().bias = b.elements(n);
    }
    return set;
  };
  const auto work = [](const LinearSet& set, const Shape&) {
    CaseWork work;
    for (const Linear& part : set.parts) work.bytes += bytes(shape(part)), work.flops += flops(shape(part));
    return work;
  };
  const auto matches = [](TimedDevice& device, const LinearSet& set, const Run& run) {
    return std::all_of(set.parts.begin(), set.parts.end(), [&](const Linear& part) { return linear_matches(device, part, run); });
  };
  return step_family<LinearSet>("linear_set", {{"tokens", "m"}, {"first", "n"}, {"second", "o"}, {"third", "p"}, {"in", "k"}},
                                {{3, 24, 16, 16, 32}}, {type, build, work, matches});
}

// In float32.
KernelFamily linear_head(ElementType type) {
  const auto build = [](Buffers& b, const Shape& s) {
    Linear a;
    a.tokens = s.at("tokens"), a.out_dim = s.at("out"), a.in_dim = s.at("in"), a.type = b.type(), a.y_is_f32 = true;
    a.x = b.activations().elements(a.tokens * a.in_dim), a.w = b.elements(a.out_dim * a.in_dim);
    a.y = b.activations().room<float>(a.tokens * a.out_dim);
    return a;
  };
  const auto work = [](const Linear& a, const Shape&) {
    return CaseWork{bytes(shape(a)) + a.tokens * a.out_dim * (4 - element_bytes(a.type)), flops(shape(a)), {}};
  };
  return step_family<Linear>("linear_head", {{"tokens", "m"}, {"out", "n"}, {"in", "k"}}, {{3, 24, 32}},
                             {type, build, work, linear_matches});
}

const Axes kHeadAxes{{"tokens", "t"}, {"q_heads", "q"}, {"kv_heads", "kv"}, {"head_dim", "d"}};

template <class Op>
struct QueriesAndKeys {
  Op q, k;
};
template <class Op>
void run_cuda(const QueriesAndKeys<Op>& a, CudaContext& cuda) {
  run_cuda(a.q, cuda);
  run_cuda(a.k, cuda);
}

template <class Op, class Build, class Matches>
KernelFamily queries_and_keys(const std::string& name, ElementType type, Build build, Matches matches) {
  const auto work = [](const QueriesAndKeys<Op>& a, const Shape&) {
    return CaseWork{bytes(shape(a.q)) + bytes(shape(a.k)), flops(shape(a.q)) + flops(shape(a.k)), {}};
  };
  const auto both_match = [matches](TimedDevice& device, const QueriesAndKeys<Op>& a, const Run& run) {
    return matches(device, a.q, run) && matches(device, a.k, run);
  };
  return step_family<QueriesAndKeys<Op>>(name, kHeadAxes, {{3, 4, 2, 16}}, {type, build, work, both_match});
}

// Keys in place.
QueriesAndKeys<Rope> build_rope_qk(Buffers& b, const Shape& s) {
  const std::int64_t tokens = s.at("tokens"), d = s.at("head_dim"), q = s.at("q_heads") * d, kv = s.at("kv_heads") * d;
  Buffers& passed = b.activations();
  const Angles angle = angles(tokens * d / 2);
  std::vector<std::int32_t> position;
  for (std::int64_t t = 0; t < tokens; ++t) position.push_back(static_cast<std::int32_t>(tokens - 1 - t));
  void* const qkv = passed.elements(tokens * (q + 2 * kv));
  QueriesAndKeys<Rope> a;
  a.q.in = qkv, a.q.out = passed.element_room(tokens * q), a.q.in_stride = q + 2 * kv;
  a.q.cos = passed.put(angle.cos), a.q.sin = passed.put(angle.sin), a.q.position = passed.put(position);
  a.q.tokens = tokens, a.q.heads = s.at("q_heads"), a.q.head_dim = d, a.q.type = b.type();
  a.k = a.q;
  a.k.out = at_element(qkv, q, b.type()), a.k.in = a.k.out, a.k.heads = s.at("kv_heads"), a.k.out_stride = a.k.in_stride;
  return a;
}

bool rope_part_matches(TimedDevice& device, const Rope& a, const Run& run) {
  const std::int64_t half = a.head_dim / 2, each = a.heads * a.head_dim, out_stride = a.out_stride != 0 ? a.out_stride : each;
  const std::vector<std::int64_t> rows = sampled(a.tokens, 8);
  std::vector<std::vector<float>> before;
  for (const std::int64_t t : rows) before.push_back(read_at(device, a.in, t * a.in_stride, each, a.type));
  run();
  RelativeError error;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t line = read_values(device, a.position + rows[r], 1).front();
    add_rotation_error(before[r], read_floats(device, a.cos + line * half, half), read_floats(device, a.sin + line * half, half),
                       read_at(device, a.out, rows[r] * out_stride, each, a.type), error);
  }
  return error.below(tolerance_of(a.type));
}

KernelFamily rope_qk(ElementType type) { return queries_and_keys<Rope>("rope_qk", type, build_rope_qk, rope_part_matches); }

// Heads of queries, then of keys, in place.
KernelFamily rmsnorm_qk(ElementType type) {
  const auto build = [](Buffers& b, const Shape& s) {
    const auto norm = [&](std::int64_t heads) {
      RmsNorm a;
      a.tokens = s.at("tokens") * heads, a.width = s.at("head_dim"), a.type = b.type();
      a.out = b.activations().elements(a.tokens * a.width), a.in = a.out, a.weight = b.elements(a.width);
      return a;
    };
    const RmsNorm q = norm(s.at("q_heads"));
    return QueriesAndKeys<RmsNorm>{q, norm(s.at("kv_heads"))};
  };
  return queries_and_keys<RmsNorm>("rmsnorm_qk", type, build, rmsnorm_matches);
}

// From the QKV output. More tokens than sequences: prompts, with page tables from CPU memory.
struct AppendStep {
  KvRows kv;
  AppendKv decode;  // if decode.tokens > 0
  AppendRows prompts;
};
void run_cuda(const AppendStep& a, CudaContext& cuda) {
  if (a.decode.tokens > 0)
    run_cuda(a.decode, cuda);
  else
    run_cuda(a.prompts, cuda);
}

constexpr std::int64_t kCached = 20;

AppendKv decode_append(Buffers& b, const KvRows& kv) {
  AppendKv a;
  const auto rows = static_cast<std::size_t>(kv.num_rows);
  a.kv.format = b.type() == ElementType::kF16 ? KvFormat::kF16 : KvFormat::kBf16, a.kv.type = b.type();
  a.kv.num_rows = kv.num_rows, a.kv.kv_heads = kv.kv_heads, a.kv.head_dim = kv.head_dim, a.kv.page_tokens = kv.page_tokens;
  a.kv.k = kv.k, a.kv.v = kv.v, a.tokens = kv.num_sequences();
  const std::int64_t pages = kv.page_begin[rows - 1] + ceil_div(kv.len[rows - 1], kv.page_tokens);
  a.kv.len = b.put(std::vector<std::int32_t>(kv.len, kv.len + rows));
  a.kv.page_begin = b.put(std::vector<std::int32_t>(kv.page_begin, kv.page_begin + rows));
  a.kv.page = b.put(std::vector<std::int32_t>(kv.page, kv.page + pages));
  return a;
}

AppendStep build_append_step(Buffers& b, const Shape& s) {
  const std::int64_t sequences = s.at("sequences"), d = s.at("head_dim"), q = s.at("q_heads") * d, kv = s.at("kv_heads") * d;
  const bool decodes = sequences == s.at("tokens");
  const std::int64_t each = s.at("tokens") / sequences;  // a remainder is left out
  RowsSpec spec;
  spec.batch = sequences, spec.kv_heads = s.at("kv_heads"), spec.head_dim = d, spec.len = decodes ? kCached + 1 : each;
  AppendStep a;
  a.kv = paged_rows(b, spec);
  const void* const qkv = b.activations().elements(sequences * each * (q + 2 * kv));
  const auto from = [&](std::int64_t i) { return static_cast<const char*>(qkv) + i * element_bytes(b.type()); };
  a.prompts.kv = a.kv, a.prompts.type = b.type(), a.prompts.token_stride = q + 2 * kv;
  std::vector<AppendedTokens> news;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::int64_t token = i * each * (q + 2 * kv);
    news.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(each), 0, from(token + q), from(token + q + kv)});
  }
  a.prompts.news = {b.host(std::move(news)), static_cast<std::size_t>(sequences)};
  if (!decodes) return a;
  a.decode = decode_append(b, a.kv);
  a.decode.k = from(q), a.decode.v = from(q + kv), a.decode.token_stride = q + 2 * kv;
  return a;
}

KernelFamily append_step(ElementType type) {
  const auto work = [](const AppendStep& a, const Shape& s) {
    const std::int64_t each = element_bytes(a.kv.type);
    return CaseWork{bytes(AppendKvShape{s.at("tokens"), s.at("kv_heads"), s.at("head_dim"), each, each}), 0, {}};
  };
  const auto matches = [](TimedDevice& device, const AppendStep& a, const Run& run) { return append_matches(device, a.prompts, run); };
  Axes axes = kHeadAxes;
  axes.emplace_back("sequences", "s");
  return step_family<AppendStep>("append_step", axes, {{3, 4, 2, 64, 3}, {60, 4, 2, 64, 3}}, {type, build_append_step, work, matches});
}

// Tables from CPU memory, as PolicyCache::attend_prompts().
struct PromptStep {
  KvRows kv;
  DevicePrefill prefill;
  const std::int32_t *query_first = nullptr, *before = nullptr;  // CPU memory
};
void run_cuda(const PromptStep& a, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  const DeviceRows rows = on_device(a.kv, cuda);
  DevicePrefill op = a.prefill;
  op.query_first = cuda.upload(a.query_first, 2), op.kv_before = cuda.upload(a.before, a.kv.num_rows);
  op.page_begin = rows.page_begin, op.page = rows.page, op.longest_kv = rows.longest;
  run_cuda(op, cuda);
}

PromptStep build_prompt_step(Buffers& b, const Shape& s) {
  const std::int64_t tokens = s.at("new"), before = s.at("before");
  RowsSpec spec;
  spec.kv_heads = s.at("kv_heads"), spec.head_dim = s.at("head_dim"), spec.len = tokens + before;
  PromptStep a;
  a.kv = paged_rows(b, spec);
  DevicePrefill& op = a.prefill;
  op.prompts = 1, op.tokens = static_cast<std::int32_t>(tokens), op.type = b.type(), op.page_tokens = a.kv.page_tokens;
  op.q_heads = static_cast<std::int32_t>(s.at("q_heads")), op.kv_heads = a.kv.kv_heads, op.head_dim = a.kv.head_dim;
  op.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(op.head_dim)));
  const std::int64_t elements = tokens * op.q_heads * op.head_dim;
  op.q = b.activations().elements(elements), op.out = b.activations().element_room(elements), op.k = a.kv.k, op.v = a.kv.v;
  a.query_first = b.host(std::vector<std::int32_t>{0, op.tokens});
  a.before = b.host(std::vector<std::int32_t>(static_cast<std::size_t>(op.kv_heads), static_cast<std::int32_t>(before)));
  return a;
}

bool prompt_step_matches(TimedDevice& device, const PromptStep& a, const Run& run) {
  run();
  const DevicePrefill& op = a.prefill;
  const std::int64_t d = op.head_dim, group = op.q_heads / op.kv_heads;
  RelativeError error;
  for (const std::int64_t h : sampled(op.q_heads, 2)) {
    const auto row = static_cast<std::int32_t>(h / group);
    const std::vector<float> k = row_vectors(device, a.kv, row, false), v = row_vectors(device, a.kv, row, true);
    for (const std::int64_t t : sampled(op.tokens, 3)) {
      const std::int64_t at = (t * op.q_heads + h) * d;
      add_attention_error(read_at(device, op.q, at, d, op.type), k, v, *a.before + t + 1, wide(op.scale),
                          read_at(device, op.out, at, d, op.type), error);
    }
  }
  return error.below(2 * tolerance_of(op.type));  // probabilities are rounded before the V product
}

KernelFamily prompt_step(ElementType type) {
  const auto work = [](const PromptStep& a, const Shape& s) {
    const AttentionPrefillShape one = shape(a.prefill, s.at("new"), s.at("before"));
    return CaseWork{bytes(one), flops(one), {}};
  };
  return step_family<PromptStep>("attention_prefill_step", kPrefillAxes, {{20, 13, 4, 2, 64}},
                                 {type, build_prompt_step, work, prompt_step_matches});
}

}  // namespace

void add_step_cuda_cases(std::vector<KernelFamily>& families) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF16})
    for (const KernelFamily& f :
         {linear_set(type), linear_head(type), rope_qk(type), rmsnorm_qk(type), append_step(type), prompt_step(type)})
      families.push_back(f);
}

}  // namespace kvlab
