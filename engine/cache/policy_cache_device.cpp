// PolicyCache on a GPU.
#include <algorithm>
#include <cmath>

#include "engine/cache/policy_cache_group.h"
#include "kernels/attention/attend/attend.h"
#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/upload.h"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

void* element(void* data, std::int64_t i, ElementType type) { return static_cast<char*>(data) + i * element_bytes(type); }
const void* element(const void* data, std::int64_t i, ElementType type) { return static_cast<const char*>(data) + i * element_bytes(type); }

bool is_power_of_two(std::int32_t x) { return (x & (x - 1)) == 0; }

}  // namespace

// Dense float32 is used in place.
const float* PolicyCache::as_floats(TensorArray<float>& to, const void* from, std::int64_t rows, std::int64_t width, std::int64_t stride,
                                    ElementType type) {
  if (type == ElementType::kF32 && stride == width) return static_cast<const float*>(from);
  to.resize(rows * width);
  run_cuda(DeviceConvert{from, to.data(), rows, width, stride, width, type, ElementType::kF32}, *model_->memory().cuda());
  return to.data();
}

void PolicyCache::before_rope(std::int32_t layer, const DeviceLayer& in) {
  const Needs& needs = policy_.needs();
  const std::int64_t q_width = std::int64_t{shape_.q_heads} * shape_.head_dim, kv_width = std::int64_t{shape_.kv_heads} * shape_.head_dim;
  const float *hidden = nullptr, *q = nullptr, *k = nullptr;
  if (needs.hidden) hidden = as_floats(hidden_, in.hidden, in.tokens, shape_.hidden_dim, shape_.hidden_dim, in.type);
  if (needs.pre_rope_queries) q = as_floats(q_, in.q, in.tokens, q_width, in.q_stride, in.type);
  if (needs.pre_rope_keys) k = as_floats(k_, in.k, in.tokens, kv_width, in.kv_stride, in.type);
  before_rope(layer, hidden, q, k);
}

void PolicyCache::attend(std::int32_t layer, const DeviceLayer& in, void* out) {
  LayerInput floats{nullptr, in.k, in.v, in.type, in.kv_stride, nullptr, &in, out};
  if (policy_.needs().step_queries || policy_.needs().window_queries > 0) make_floats(floats);
  attend_layer(layer, floats);
}

void PolicyCache::make_floats(LayerInput& in) {
  if (in.q != nullptr) return;
  const DeviceLayer& native = *in.native;
  const std::int64_t width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  in.q = as_floats(q_, native.q, native.tokens, width, native.q_stride, native.type);
  if (native.type == ElementType::kF32) {
    in.out = static_cast<float*>(in.native_out);
    return;
  }
  out_.resize(native.tokens * width);
  in.out = out_.data();
}

// Tensor cores, else float32.
bool PolicyCache::has_prefill_kernel() const {
  const std::int32_t d = shape_.head_dim, group = shape_.group();
  return pages_->type() != ElementType::kF32 && (d == 64 || d == 128 || d == 256) && group <= 16 && pages_->page_tokens() % 16 == 0 &&
         is_power_of_two(pages_->page_tokens());
}

// For an uncut chunk with selected keys, in float32.
void PolicyCache::attend_selected(Group& g, std::size_t s, std::int32_t layer, LayerInput& in) {
  make_floats(in);
  const Ops::Frame frame(ops_);
  const std::int64_t width = std::int64_t{shape_.kv_heads} * shape_.head_dim, from = g.first[s] * width * shape_.group();
  float *const k = ops_.floats(g.seqs[s].end() * width), *const v = ops_.floats(g.seqs[s].end() * width);
  gather(g, s, layer, k, v);
  policy_.attend_prompt(
      {ops_, shape_, layer, g.seqs[s], in.q + from, k, v, in.out + from, nullptr, model_->config().window(layer), model_->memory()});
  return_outputs(in, g.first[s], g.seqs[s].new_tokens);
}

// Uncut prompts.
void PolicyCache::attend_prompts(Group& g, std::int32_t layer, LayerInput& in) {
  CudaContext& cuda = *model_->memory().cuda();
  const CudaContext::Frame frame(cuda);
  const DeviceLayer& native = *in.native;
  const DeviceRows rows = on_device(g.layers[place(layer)].rows(), cuda);
  const std::int64_t width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  // Adjacent sequences share a launch.
  const auto selects = [&](std::size_t s) { return policy_.selects_in_prompts(layer) && g.seqs[s].new_tokens > 1; };
  for (std::size_t begin = 0, end = 0; begin < g.seqs.size(); begin = end) {
    if (selects(begin)) {
      attend_selected(g, begin, layer, in);
      end = begin + 1;
      continue;
    }
    std::vector<std::int32_t> query_first{0}, before;
    for (end = begin; end < g.seqs.size() && g.first[end] == g.first[begin] + query_first.back() && !selects(end); ++end) {
      query_first.push_back(query_first.back() + g.seqs[end].new_tokens);
      before.insert(before.end(), place(shape_.kv_heads), g.seqs[end].seen_tokens);
    }
    DevicePrefill op;
    op.type = native.type;
    op.q = element(native.q, g.first[begin] * native.q_stride, native.type), op.q_stride = native.q_stride;
    op.k = rows.k, op.v = rows.v, op.out = element(in.native_out, g.first[begin] * width, native.type);
    op.query_first = cuda.upload(query_first.data(), static_cast<std::int64_t>(query_first.size()));
    op.kv_before = cuda.upload(before.data(), static_cast<std::int64_t>(before.size()));
    op.page_begin = rows.page_begin + static_cast<std::int64_t>(begin) * shape_.kv_heads, op.page = rows.page;
    op.prompts = static_cast<std::int32_t>(end - begin), op.tokens = query_first.back(), op.longest_kv = rows.longest;
    op.q_heads = shape_.q_heads, op.kv_heads = shape_.kv_heads, op.head_dim = shape_.head_dim;
    op.page_tokens = pages_->page_tokens();
    op.window = model_->config().window(layer);
    op.scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
    run_cuda(op, cuda);
  }
}

// One token per sequence, all rows seen; else false.
bool PolicyCache::attend_decoding(const Group& g, std::int32_t layer, const LayerInput& in) {
  const std::int32_t window = model_->config().window(layer);
  if (window > 0 && std::any_of(g.seqs.begin(), g.seqs.end(), [&](const SeqStep& s) { return s.end() > window; })) return false;
  const bool one_each = std::all_of(g.seqs.begin(), g.seqs.end(), [](const SeqStep& s) { return s.new_tokens == 1; });
  const bool in_order = g.first.back() - g.first.front() == static_cast<std::int64_t>(g.seqs.size()) - 1;
  if (g.is_prompt || !one_each || !in_order || !has_prefill_kernel()) return false;
  if (segments_.size() != 1 || segments_.front().index_first != nullptr || segments_.front().log_weight != nullptr) return false;
  CudaContext& cuda = *model_->memory().cuda();
  const CudaContext::Frame frame(cuda);
  const KvRows& kv = segments_.front().kv;
  const DeviceRows rows = on_device(kv, cuda);
  const std::int64_t width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  PagedDecode op;
  op.kv.format = kv.type == ElementType::kF16 ? KvFormat::kF16 : KvFormat::kBf16, op.kv.type = kv.type;
  op.kv.num_rows = kv.num_rows, op.kv.kv_heads = kv.kv_heads, op.kv.head_dim = kv.head_dim, op.kv.page_tokens = kv.page_tokens;
  op.kv.len = rows.len, op.kv.page_begin = rows.page_begin, op.kv.page = rows.page, op.kv.k = rows.k, op.kv.v = rows.v;
  op.q = element(in.native->q, g.first.front() * width, kv.type), op.out = element(in.native_out, g.first.front() * width, kv.type);
  op.q_heads = shape_.q_heads, op.longest = rows.longest, op.kv_tokens = rows.total;
  op.out_type = kv.type;
  run_cuda(op, cuda);
  return true;
}

void PolicyCache::return_outputs(const Group& g, const LayerInput& in) {
  for (std::size_t begin = 0, end = 0; begin < g.seqs.size(); begin = end) {
    std::int64_t tokens = 0;
    for (end = begin; end < g.seqs.size() && g.first[end] == g.first[begin] + tokens; ++end) tokens += g.seqs[end].new_tokens;
    return_outputs(in, g.first[begin], tokens);
  }
}

void PolicyCache::return_outputs(const LayerInput& in, std::int64_t first, std::int64_t tokens) {
  const ElementType type = in.native->type;
  const std::int64_t width = std::int64_t{shape_.q_heads} * shape_.head_dim, from = first * width;
  if (type == ElementType::kF32) return;
  run_cuda(DeviceConvert{in.out + from, element(in.native_out, from, type), tokens, width, 0, 0, ElementType::kF32, type},
           *model_->memory().cuda());
}

}  // namespace kvlab
