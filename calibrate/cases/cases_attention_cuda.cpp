// Decode over every page format, prefill over paged keys, KV append.

#include "base/ceil_div.h"
#include "calibrate/cases/model_checks.h"
#include "calibrate/cases/op_case.h"
#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"

namespace kvlab {

namespace {

constexpr std::int64_t kPatterns = 64;  // distinct pages; the pool repeats them

struct HostPages {
  std::vector<std::uint8_t> k, v;  // [kPatterns, page_bytes]
};

// Random, encoded by the CPU.
const HostPages& patterns(KvFormat format, std::int32_t head_dim, std::int32_t page_tokens) {
  static std::map<std::tuple<KvFormat, std::int32_t, std::int32_t>, HostPages> made;
  HostPages& pages = made[{format, head_dim, page_tokens}];
  if (!pages.k.empty()) return pages;
  const std::int64_t each = page_bytes(format, head_dim, page_tokens);
  pages.k.resize(static_cast<std::size_t>(kPatterns * each)), pages.v = pages.k;
  const auto cpu = make_cpu_device();
  DevicePool pool(*cpu);
  Buffers random(*cpu, pool, ElementType::kF32, 7);
  for (std::int64_t p = 0; p < kPatterns; ++p) {
    const float *k = random.floats(std::int64_t{page_tokens} * head_dim), *v = random.floats(std::int64_t{page_tokens} * head_dim);
    pack_page({format, head_dim, page_tokens, pages.k.data() + p * each, pages.v.data() + p * each}, k, v, page_tokens);
  }
  return pages;
}

// n pages that repeat the patterns.
void* pool_of(Buffers& b, const std::vector<std::uint8_t>& patterns, std::int64_t n, std::int64_t each) {
  auto* pool = b.room<std::uint8_t>(n * each);
  for (std::int64_t p = 0; p < n; p += kPatterns) b.device().to_device(pool + p * each, patterns.data(), std::min(kPatterns, n - p) * each);
  return pool;
}

// Its CPU layout serves to read device rows back.
struct DecodeOp {
  PagedDecode decode;
  const std::int32_t* host_page = nullptr;  // [num_rows * pages of a row]
  std::int64_t len = 0, pages_per_row = 0;
};
void run_cuda(const DecodeOp& a, CudaContext& cuda) { run_cuda(a.decode, cuda); }

void lay_out_pages(Buffers& b, DecodeOp& op) {
  PagedKv& kv = op.decode.kv;
  op.pages_per_row = ceil_div(op.len, kv.page_tokens);
  const std::int64_t pages = kv.num_rows * op.pages_per_row, each = page_bytes(kv.format, kv.head_dim, kv.page_tokens);
  std::vector<std::int32_t> page = shuffled(b, pages), begin;
  for (std::int64_t r = 0; r < kv.num_rows; ++r) begin.push_back(static_cast<std::int32_t>(r * op.pages_per_row));
  kv.page = b.put(page), kv.page_begin = b.put(begin);
  kv.len = b.put(std::vector<std::int32_t>(static_cast<std::size_t>(kv.num_rows), static_cast<std::int32_t>(op.len)));
  op.host_page = b.host(std::move(page));
  const HostPages& content = patterns(kv.format, kv.head_dim, kv.page_tokens);
  kv.k = pool_of(b, content.k, pages, each), kv.v = pool_of(b, content.v, pages, each);
  if (!is_kivi(kv.format)) return;
  const std::int64_t window = std::int64_t{kv.num_rows} * residual_capacity(kv.format, kv.residual) * kv.head_dim;
  kv.window_k = b.elements(window), kv.window_v = b.elements(window);
}

DecodeOp build_decode(Buffers& b, const Shape& s, KvFormat format, bool sums_columns) {
  DecodeOp op;
  PagedDecode& a = op.decode;
  op.len = s.at("len");
  a.q_heads = static_cast<std::int32_t>(s.at("q_heads"));
  a.kv.format = format, a.kv.type = b.type(), a.kv.kv_heads = static_cast<std::int32_t>(s.at("kv_heads"));
  a.kv.head_dim = static_cast<std::int32_t>(s.at("head_dim"));
  a.kv.num_rows = static_cast<std::int32_t>(s.at("batch")) * a.kv.kv_heads;
  a.kv.page_tokens = fixed_page_tokens(format) > 0 ? fixed_page_tokens(format) : 16;
  lay_out_pages(b, op);
  const std::int64_t heads = s.at("batch") * a.q_heads;
  a.q = b.activations().elements(heads * a.kv.head_dim), a.out = b.activations().element_room(heads * a.kv.head_dim), a.out_type = b.type();
  a.longest = static_cast<std::int32_t>(s.contains("longest") ? s.at("longest") : op.len);  // the bound of a recorded step
  a.kv_tokens = std::int64_t{a.kv.num_rows} * a.longest;
  a.counters = b.put(std::vector<std::int32_t>(static_cast<std::size_t>(a.kv.num_rows), 0));
  if (!sums_columns) return op;
  std::vector<std::int64_t> first;
  for (std::int64_t r = 0; r <= a.kv.num_rows; ++r) first.push_back(r * op.len);
  a.first = b.put(first), a.column_sum = b.room<float>(a.kv.num_rows * op.len);
  return op;
}

// Decoded, [len, head_dim].
struct RowValues {
  std::vector<float> k, v;
};
RowValues read_row(TimedDevice& device, const DecodeOp& op, std::int64_t row) {
  const PagedKv& kv = op.decode.kv;
  const std::int64_t each = page_bytes(kv.format, kv.head_dim, kv.page_tokens), d = kv.head_dim;
  const std::int64_t packed = is_kivi(kv.format) ? kivi_packed(kv.format, static_cast<std::int32_t>(op.len), kv.residual) : op.len;
  RowValues values;
  std::vector<float> k(static_cast<std::size_t>(kv.page_tokens * d)), v = k;
  for (std::int64_t p = 0; p * kv.page_tokens < packed; ++p) {
    const std::int64_t page = op.host_page[row * op.pages_per_row + p];
    std::vector<std::uint8_t> page_k = read_values(device, static_cast<const std::uint8_t*>(kv.k) + page * each, each);
    std::vector<std::uint8_t> page_v = read_values(device, static_cast<const std::uint8_t*>(kv.v) + page * each, each);
    unpack_page({kv.format, kv.head_dim, kv.page_tokens, page_k.data(), page_v.data()}, kv.page_tokens, k.data(), v.data());
    const std::int64_t n = std::min<std::int64_t>(kv.page_tokens, packed - p * kv.page_tokens) * d;
    values.k.insert(values.k.end(), k.begin(), k.begin() + n), values.v.insert(values.v.end(), v.begin(), v.begin() + n);
  }
  for (std::int64_t i = packed; i < op.len; ++i) {
    const std::int64_t capacity = residual_capacity(kv.format, kv.residual), at = (row * capacity + i % capacity) * d;
    const std::vector<float> wk = read_at(device, kv.window_k, at, d, kv.type), wv = read_at(device, kv.window_v, at, d, kv.type);
    values.k.insert(values.k.end(), wk.begin(), wk.end()), values.v.insert(values.v.end(), wv.begin(), wv.end());
  }
  return values;
}

bool decode_matches(TimedDevice& device, const DecodeOp& op, const Run& run) {
  run();
  const PagedDecode& a = op.decode;
  const std::int64_t d = a.kv.head_dim, group = a.q_heads / a.kv.kv_heads;
  RelativeError error;
  for (const std::int64_t row : sampled(a.kv.num_rows, 3)) {
    const RowValues values = read_row(device, op, row);
    for (std::int64_t h = row * group; h < (row + 1) * group; h += group) {
      add_attention_error(read_at(device, a.q, h * d, d, a.kv.type), values.k, values.v, op.len, 1 / std::sqrt(static_cast<double>(d)),
                          read_at(device, a.out, h * d, d, a.out_type), error);
    }
    if (a.column_sum == nullptr) continue;
    double sum = 0;
    for (const float x : read_floats(device, a.column_sum + row * op.len, op.len)) sum += wide(x);
    if (!(std::abs(sum - static_cast<double>(group)) <= 0.02 * static_cast<double>(group))) return false;
  }
  return error.below(2 * tolerance_of(a.kv.type));  // probabilities are rounded before the V product
}

KernelFamily decode_attention(KvFormat format, bool sums_columns = false) {
  const auto build = [=](Buffers& b, const Shape& s) { return build_decode(b, s, format, sums_columns); };
  const auto work = [](const DecodeOp& op, const Shape&) { return CaseWork{bytes(op.decode), flops(op.decode), {}}; };
  KernelFamily f = family_of<DecodeOp>(sums_columns ? "decode_attention_column_sums" : "decode_attention", DeviceKind::kGpu, kDecodeAxes,
                                       {{64, 4096, 32, 8, 128}, {32, 4096, 32, 8, 128}, {1, 32768, 32, 8, 128}, {1, 4096, 32, 8, 128}},
                                       {{2, 150, 4, 2, 64}},
                                       {format == KvFormat::kF16 ? ElementType::kF16 : ElementType::kBf16, build, work, decode_matches});
  f.format = name_of(format);
  return f;
}

// One token per sequence into 16-bit pages, after kCached others.
struct AppendOp {
  AppendKv append;
  DecodeOp layout;
};
void run_cuda(const AppendOp& a, CudaContext& cuda) { run_cuda(a.append, cuda); }
constexpr std::int64_t kCached = 20;

AppendOp build_page_append(Buffers& b, const Shape& s) {
  AppendOp op;
  PagedKv& kv = op.layout.decode.kv;
  op.layout.len = kCached + 1;
  kv.format = b.type() == ElementType::kF16 ? KvFormat::kF16 : KvFormat::kBf16, kv.type = b.type(), kv.page_tokens = 16;
  kv.kv_heads = static_cast<std::int32_t>(s.at("kv_heads")), kv.head_dim = static_cast<std::int32_t>(s.at("head_dim"));
  kv.num_rows = static_cast<std::int32_t>(s.at("tokens")) * kv.kv_heads;
  lay_out_pages(b, op.layout);
  op.append.kv = kv, op.append.tokens = s.at("tokens");
  op.append.k = b.activations().elements(std::int64_t{kv.num_rows} * kv.head_dim);
  op.append.v = b.activations().elements(std::int64_t{kv.num_rows} * kv.head_dim);
  return op;
}

bool page_append_matches(TimedDevice& device, const AppendOp& op, const Run& run) {
  run();
  const PagedKv& kv = op.append.kv;
  const std::int64_t d = kv.head_dim;
  for (const std::int64_t r : sampled(kv.num_rows, 16)) {
    const std::int64_t page = op.layout.host_page[r * op.layout.pages_per_row + kCached / kv.page_tokens];
    const std::int64_t slot = (page * kv.page_tokens + kCached % kv.page_tokens) * d;
    if (read_at(device, kv.k, slot, d, kv.type) != read_at(device, op.append.k, r * d, d, kv.type)) return false;
    if (read_at(device, kv.v, slot, d, kv.type) != read_at(device, op.append.v, r * d, d, kv.type)) return false;
  }
  return true;
}

KernelFamily append_kv(ElementType type) {
  const auto work = [](const AppendOp& op, const Shape&) { return CaseWork{bytes(op.append), 0, {}}; };
  return family_of<AppendOp>("append_kv", DeviceKind::kGpu, {{"tokens", "t"}, {"kv_heads", "kv"}, {"head_dim", "d"}},
                             {{1, 8, 128}, {64, 8, 128}, {8192, 8, 128}}, {{3, 2, 64}},
                             {type, build_page_append, work, page_append_matches});
}

// One prompt.
struct PrefillOp {
  DevicePrefill prefill;
  std::int64_t before = 0, pages_per_row = 0;
  const std::int32_t* host_page = nullptr;
};
void run_cuda(const PrefillOp& a, CudaContext& cuda) { run_cuda(a.prefill, cuda); }

PrefillOp build_prefill(Buffers& b, const Shape& s) {
  PrefillOp op;
  DevicePrefill& a = op.prefill;
  op.before = s.at("before");
  a.prompts = 1, a.tokens = static_cast<std::int32_t>(s.at("new")), a.type = b.type();
  a.q_heads = static_cast<std::int32_t>(s.at("q_heads")), a.kv_heads = static_cast<std::int32_t>(s.at("kv_heads"));
  a.head_dim = static_cast<std::int32_t>(s.at("head_dim")), a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  const std::int64_t keys = op.before + a.tokens;
  a.longest_kv = static_cast<std::int32_t>(keys);
  op.pages_per_row = ceil_div(keys, a.page_tokens);
  const std::int64_t pages = a.kv_heads * op.pages_per_row, elements = pages * a.page_tokens * a.head_dim;
  std::vector<std::int32_t> page = shuffled(b, pages), begin;
  for (std::int64_t r = 0; r < a.kv_heads; ++r) begin.push_back(static_cast<std::int32_t>(r * op.pages_per_row));
  a.q = b.activations().elements(std::int64_t{a.tokens} * a.q_heads * a.head_dim), a.k = b.elements(elements), a.v = b.elements(elements);
  a.out = b.activations().element_room(std::int64_t{a.tokens} * a.q_heads * a.head_dim);
  a.query_first = b.put(std::vector<std::int32_t>{0, a.tokens}), a.page_begin = b.put(begin), a.page = b.put(page);
  a.kv_before = b.put(std::vector<std::int32_t>(static_cast<std::size_t>(a.kv_heads), static_cast<std::int32_t>(op.before)));
  op.host_page = b.host(std::move(page));
  return op;
}

bool prefill_matches(TimedDevice& device, const PrefillOp& op, const Run& run) {
  run();
  const DevicePrefill& a = op.prefill;
  const std::int64_t d = a.head_dim;
  RelativeError error;
  for (const std::int64_t h : sampled(a.q_heads, 2)) {
    const std::int64_t row = h * a.kv_heads / a.q_heads;
    std::vector<float> k, v;
    for (std::int64_t p = 0; p < op.pages_per_row; ++p) {
      const std::int64_t at = op.host_page[row * op.pages_per_row + p] * a.page_tokens * d, n = a.page_tokens * d;
      const std::vector<float> page_k = read_at(device, a.k, at, n, a.type), page_v = read_at(device, a.v, at, n, a.type);
      k.insert(k.end(), page_k.begin(), page_k.end()), v.insert(v.end(), page_v.begin(), page_v.end());
    }
    for (const std::int64_t t : sampled(a.tokens, 3)) {
      const std::int64_t at = (t * a.q_heads + h) * d;
      add_attention_error(read_at(device, a.q, at, d, a.type), k, v, op.before + t + 1, wide(a.scale),
                          read_at(device, a.out, at, d, a.type), error);
    }
  }
  return error.below(2 * tolerance_of(a.type));
}

KernelFamily attention_prefill(ElementType type) {
  const auto work = [](const PrefillOp& op, const Shape& s) {
    const AttentionPrefillShape one = shape(op.prefill, s.at("new"), s.at("before"));
    return CaseWork{bytes(one), flops(one), {}};
  };
  return family_of<PrefillOp>("attention_prefill", DeviceKind::kGpu, kPrefillAxes,
                              {{8192, 0, 32, 8, 128}, {2048, 0, 32, 8, 128}, {512, 8192, 32, 8, 128}, {16, 32768, 32, 8, 128}},
                              {{20, 13, 4, 2, 64}}, {type, build_prefill, work, prefill_matches});
}

// Lists are in device and CPU memory.
struct SparsePrefillOp {
  PrefillOp dense;
  DeviceSparsePrefill sparse;
  SparseKeys host;
};
void run_cuda(const SparsePrefillOp& a, CudaContext& cuda) { run_cuda(a.sparse, cuda); }

SparsePrefillOp build_sparse(Buffers& b, const Shape& s) {
  SparsePrefillOp op{build_prefill(b, s), {}, {}};
  op.host = draw_sparse_lists(b, s.at("new"), s.at("before"), s.at("q_heads"), s.at("percent"));
  const std::int64_t lists = s.at("q_heads") * query_blocks(s.at("new"), s.at("before"), op.host.block);
  op.sparse = {op.dense.prefill, op.host};
  op.sparse.keys.block_first = b.put(std::vector<std::int64_t>(op.host.block_first, op.host.block_first + lists + 1));
  op.sparse.keys.blocks = b.put(std::vector<std::int32_t>(op.host.blocks, op.host.blocks + op.host.block_first[lists]));
  return op;
}

CaseWork sparse_work(const SparsePrefillOp& op, const Shape& s) {
  const DevicePrefill& p = op.dense.prefill;
  SparsePrefill a;
  a.new_tokens = s.at("new"), a.kv_before = s.at("before"), a.q_heads = p.q_heads, a.kv_heads = p.kv_heads, a.head_dim = p.head_dim;
  a.keys = op.host, a.activation_bytes = a.kv_bytes = element_bytes(p.type);
  return work_of_call(a, s);
}

bool sparse_pages_match(TimedDevice& device, const SparsePrefillOp& op, const Run& run) {
  run();
  const DevicePrefill& a = op.dense.prefill;
  const std::int64_t d = a.head_dim, blocks = query_blocks(a.tokens, op.dense.before, op.host.block);
  RelativeError error;
  for (const std::int64_t h : sampled(a.q_heads, 2)) {
    const std::int64_t row = h * a.kv_heads / a.q_heads;
    for (const std::int64_t t : sampled(a.tokens, 3)) {
      const std::vector<std::int64_t> seen = seen_positions(op.host, blocks, op.dense.before, h, t);
      std::vector<float> k, v;
      for (const std::int64_t i : seen) {
        const std::int64_t page = op.dense.host_page[row * op.dense.pages_per_row + i / a.page_tokens];
        const std::int64_t slot = (page * a.page_tokens + i % a.page_tokens) * d;
        const std::vector<float> key = read_at(device, a.k, slot, d, a.type), value = read_at(device, a.v, slot, d, a.type);
        k.insert(k.end(), key.begin(), key.end()), v.insert(v.end(), value.begin(), value.end());
      }
      const std::int64_t at = (t * a.q_heads + h) * d;
      add_attention_error(read_at(device, a.q, at, d, a.type), k, v, static_cast<std::int64_t>(seen.size()), wide(a.scale),
                          read_at(device, a.out, at, d, a.type), error);
    }
  }
  return error.below(2 * tolerance_of(a.type));
}

KernelFamily sparse_prefill(ElementType type) {
  return family_of<SparsePrefillOp>("sparse_prefill", DeviceKind::kGpu, sparse_axes(),
                                    {{8192, 0, 32, 8, 128, 100}, {8192, 0, 32, 8, 128, 50}, {8192, 0, 32, 8, 128, 10}},
                                    {{70, 40, 4, 2, 64, 40}}, {type, build_sparse, sparse_work, sparse_pages_match});
}

}  // namespace

void add_attention_cuda_cases(std::vector<KernelFamily>& families) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kF16, KvFormat::kFp8, KvFormat::kInt8, KvFormat::kKivi4, KvFormat::kKivi2,
                                KvFormat::kToken4, KvFormat::kToken2})
    families.push_back(decode_attention(format));
  families.push_back(decode_attention(KvFormat::kBf16, true));
  for (const ElementType type : {ElementType::kBf16, ElementType::kF16}) {
    families.push_back(append_kv(type));
    families.push_back(attention_prefill(type));
    families.push_back(sparse_prefill(type));
  }
}

}  // namespace kvlab
