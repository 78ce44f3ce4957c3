#include "engine/device/plain_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/ceil_div.h"
#include "base/error.h"
#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/device/cuda/upload.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"

namespace kvlab {

namespace {

constexpr std::int32_t kLeastTokens = 256;

std::size_t number(std::int32_t i) { return static_cast<std::size_t>(i); }

// 1, 2, 4, 8, then multiples of 8.
std::int32_t rounded_batch(std::int32_t n) {
  return n <= 8 ? static_cast<std::int32_t>(std::bit_ceil(static_cast<unsigned>(n))) : (n + 7) / 8 * 8;
}

}  // namespace

std::int32_t PlainDecoder::rounded_tokens(std::int32_t tokens) {
  return std::max(kLeastTokens, static_cast<std::int32_t>(std::bit_ceil(static_cast<unsigned>(tokens))));
}

class PlainDecoder::Attention final : public DeviceAttentionHost {
 public:
  Attention(const PlainDecoder& decoder, const Size& size) : d_(decoder), size_(size) {}

  void attend(std::int32_t layer, const DeviceLayer& in, void* out) override {
    const ModelConfig& c = d_.model_.config();
    PagedKv kv;
    kv.format = in.type == ElementType::kF16 ? KvFormat::kF16 : KvFormat::kBf16, kv.type = in.type;
    kv.kv_heads = c.kv_heads, kv.head_dim = c.head_dim, kv.page_tokens = d_.pool_.page_tokens;
    kv.num_rows = size_.batch * c.kv_heads;
    kv.len = d_.len_.data(), kv.page_begin = d_.page_begin_.data();
    kv.page = d_.page_.data() + std::int64_t{layer} * d_.slots_ * d_.heads_ * d_.row_pages_;
    kv.k = d_.pool_.k, kv.v = d_.pool_.v;
    run_cuda(AppendKv{kv, in.k, in.v, in.kv_stride, nullptr, size_.batch, 1, d_.pool_.position}, d_.cuda_);
    PagedDecode op;
    op.kv = kv, op.q = in.q, op.out = out, op.out_type = in.type;
    op.counters = d_.counters_.data(), op.q_heads = c.q_heads;
    op.longest = size_.longest, op.kv_tokens = std::int64_t{kv.num_rows} * size_.longest;
    run_cuda(op, d_.cuda_);
  }

 private:
  const PlainDecoder& d_;
  Size size_;
};

PlainDecoder::PlainDecoder(DeviceTransformer& model, PolicyCache& cache, bool graphs)
    : model_(model),
      cache_(cache),
      cuda_(model.cuda()),
      graphs_(graphs),
      heads_(model.config().kv_heads),
      page_(TensorMemory(cuda_)),
      page_begin_(TensorMemory(cuda_)),
      len_(TensorMemory(cuda_)),
      counters_(TensorMemory(cuda_)),
      temperature_(TensorMemory(cuda_)),
      key_(TensorMemory(cuda_)),
      token_(TensorMemory(cuda_)) {}

bool PlainDecoder::can_run(const DeviceTransformer& model, const PolicyCache& cache) {
  const ModelConfig& c = model.config();
  const bool has_kernel =
      model.type() != ElementType::kF32 && (c.head_dim == 64 || c.head_dim == 128 || c.head_dim == 256) && c.q_heads <= 16 * c.kv_heads;
  if (c.rope_scaling.kind == RopeScaling::Kind::kDynamic) return false;  // rotations follow the longest sequence
  if (std::any_of(c.windows.begin(), c.windows.end(), [](std::int32_t w) { return w > 0; })) return false;
  const std::int32_t page = cache.pages().page_tokens();
  return has_kernel && page >= 16 && std::has_single_bit(static_cast<unsigned>(page)) && cache.policy().recipe().keeps_everything();
}

// At once: growth copies. All rows of a sequence are equal.
void PlainDecoder::make_room(std::span<const Token> batch) {
  const std::int32_t page_tokens = cache_.pages().page_tokens();
  std::int64_t pages = 0;
  for (const Token& t : batch) {
    const auto held = static_cast<std::int64_t>(t.sequence->rows.front().pages.front().size());
    pages += std::max<std::int64_t>(0, t.sequence->seen_tokens / page_tokens + 1 - held);
  }
  cache_.pages().make_free(pages * model_.config().layers * heads_);
}

void PlainDecoder::extend(EngineSequence& sequence) {
  const std::int32_t page_tokens = cache_.pages().page_tokens(), tokens = sequence.seen_tokens + 1;
  for (KvStore::Sequence& layer : sequence.rows) {
    for (std::size_t h = 0; h < layer.len.size(); ++h) {
      if (layer.len[h] != sequence.seen_tokens) throw InternalError("a cache that keeps everything lost tokens");
      while (static_cast<std::int32_t>(layer.pages[h].size()) * page_tokens < tokens) layer.pages[h].push_back(cache_.pages().take());
      layer.len[h] = tokens;
    }
  }
}

void PlainDecoder::make_tables(std::int32_t batch, std::int32_t pages) {
  if (batch <= slots_ && pages <= row_pages_) return;
  slots_ = std::max(slots_, batch);
  row_pages_ = std::max(row_pages_, static_cast<std::int32_t>(std::bit_ceil(static_cast<unsigned>(pages))));
  slot_.assign(number(slots_), {});
  forget_graphs();  // graphs hold offsets into the tables
  const std::int64_t rows = std::int64_t{slots_} * heads_;
  page_ = TensorArray<std::int32_t>(TensorMemory(cuda_));  // frees first
  page_.resize(model_.config().layers * rows * row_pages_);
  page_.memory().fill(page_.data(), 0, page_.size() * 4);
  std::vector<std::int32_t> begin;
  for (std::int64_t r = 0; r < rows; ++r) begin.push_back(static_cast<std::int32_t>(r * row_pages_));
  page_begin_.resize(0);
  page_begin_.append_from_host(begin.data(), rows);
  len_.resize(rows);
  counters_.resize(0);
  counters_.resize(rows, 0);
  temperature_.resize(slots_);
  key_.resize(slots_);
  token_.resize(slots_);
}

void PlainDecoder::update_tables(std::span<const Token> batch) {
  std::vector<std::int64_t> place;
  std::vector<std::int32_t> value;
  for (std::size_t s = 0; s < batch.size(); ++s) {
    const EngineSequence& sequence = *batch[s].sequence;
    Slot& slot = slot_[s];
    const std::int32_t known = slot.pages_id == sequence.pages_id ? slot.pages : 0;
    for (std::size_t l = 0; l < sequence.rows.size(); ++l) {
      for (std::size_t h = 0; h < number(heads_); ++h) {
        const std::vector<std::int32_t>& pages = sequence.rows[l].pages[h];
        const std::size_t row = (l * number(slots_) + s) * number(heads_) + h;
        for (std::size_t p = number(known); p < pages.size(); ++p) {
          place.push_back(static_cast<std::int64_t>(row * number(row_pages_) + p));
          value.push_back(pages[p]);
        }
      }
    }
    slot = {sequence.pages_id, static_cast<std::int32_t>(sequence.rows.front().pages.front().size())};
  }
  run_cuda(DeviceScatter{page_.data(), place.data(), value.data(), static_cast<std::int64_t>(place.size())}, cuda_);
}

// Slots after the batch are empty.
void PlainDecoder::upload_step(std::span<const Token> batch, std::int32_t size) {
  std::vector<std::int32_t> ids(number(size), 0), positions(number(size), 0), len(number(size * heads_), 0);
  std::vector<float> temperature(number(size), 0);
  std::vector<std::uint64_t> key(number(size), 0);
  for (std::size_t s = 0; s < batch.size(); ++s) {
    ids[s] = batch[s].id, positions[s] = batch[s].sequence->seen_tokens;
    std::fill_n(len.begin() + static_cast<std::ptrdiff_t>(s * number(heads_)), heads_, positions[s] + 1);
    temperature[s] = batch[s].temperature, key[s] = batch[s].key;
  }
  const DeviceTransformer::Inputs inputs = model_.inputs(size);
  const TensorMemory& memory = page_.memory();
  memory.from_host(inputs.ids, ids.data(), size * 4);
  memory.from_host(inputs.positions, positions.data(), size * 4);
  memory.from_host(len_.data(), len.data(), static_cast<std::int64_t>(len.size()) * 4);
  memory.from_host(temperature_.data(), temperature.data(), size * 4);
  memory.from_host(key_.data(), key.data(), size * 8);
}

void PlainDecoder::run_step(const Size& size) {
  Attention attention(*this, size);
  model_.run(size.batch, attention);
  run_cuda(Sampling{model_.all_logits(size.batch), temperature_.data(), key_.data(), token_.data(), size.batch, model_.config().vocab_size,
                    0, ElementType::kF32},
           cuda_);
}

std::vector<const void*> PlainDecoder::places() const {
  std::vector<const void*> all = model_.places();
  for (const void* p :
       {static_cast<const void*>(pool_.k), static_cast<const void*>(pool_.v), static_cast<const void*>(pool_.position),
        static_cast<const void*>(page_.data()), static_cast<const void*>(len_.data()), static_cast<const void*>(page_begin_.data())})
    all.push_back(p);
  return all;
}

// A size's first step allocates scratch memory and is not recorded.
void PlainDecoder::launch(const Size& size) {
  forget_stale_graphs();
  if (const auto known = recorded_.find(size); known != recorded_.end()) {
    known->second.launch(cuda_);
    return;
  }
  run_step(size);
  if (!graphs_) return;
  forget_stale_graphs();
  if (!is_full_) record(size);
}

// Without memory for a graph, steps take longer.
void PlainDecoder::record(const Size& size) {
  try {
    recorded_.emplace(size, CudaGraph(cuda_, [this, size] { run_step(size); }));
  } catch (const GpuMemoryError& e) {
    is_full_ = true;
    if (remark_.empty())
      remark_ = fmt::format(
          "{} decode steps run as graphs; the GPU had no memory for that of {} sequences of up to {} tokens ({}), whose kernels, and those "
          "of sizes that come later, are launched one by one: give the KV cache fewer blocks",
          recorded_.size(), size.batch, size.longest, e.what());
  }
}

void PlainDecoder::forget_graphs() {
  recorded_.clear();
  is_full_ = false;
}

void PlainDecoder::forget_stale_graphs() {
  const std::vector<const void*> now = places();
  if (now == recorded_places_) return;
  forget_graphs();
  recorded_places_ = now;
}

// Row length that fits with `batch` sequences.
std::int32_t PlainDecoder::tables_for(std::int32_t batch, std::int32_t tokens) const {
  const std::int64_t of_token = std::int64_t{4} * model_.config().layers * heads_ * batch;
  std::int32_t longest = rounded_tokens(tokens);
  while (longest > kLeastTokens && of_token * (longest / pool_.page_tokens) > cuda::free_bytes() / 4) longest /= 2;
  return longest;
}

// Largest first: others fit into their memory. Slots are empty.
void PlainDecoder::prepare(std::int32_t sequences, std::int32_t tokens, std::int64_t cached_tokens) {
  if (!graphs_ || sequences < 1) return;
  cache_.pages().fill(pool_);
  std::vector<std::int32_t> batches;
  for (std::int32_t n = 1; n <= sequences; n = batches.back() + 1) batches.push_back(rounded_batch(n));
  const std::int32_t longest = tables_for(batches.back(), tokens);
  make_tables(batches.back(), ceil_div(longest, pool_.page_tokens));
  model_.make_rotations(longest);
  for (std::int32_t n = longest; n >= kLeastTokens; n /= 2) {
    const std::int64_t of_longest = n == kLeastTokens ? 1 : n / 2 + 1;
    for (std::size_t i = batches.size(); i-- > 0;) {
      const std::int64_t others = i == 0 ? 0 : batches[i - 1];  // at least a page each
      if (of_longest + others * pool_.page_tokens > cached_tokens) continue;
      upload_step({}, batches[i]);
      launch({batches[i], n});
      if (is_full_) return cuda_.synchronize();
    }
  }
  cuda_.synchronize();
}

void PlainDecoder::repeat() { launch(last_); }

std::vector<std::int32_t> PlainDecoder::step(std::span<const Token> batch) {
  if (batch.empty()) return {};
  std::int32_t longest = 0;
  for (const Token& t : batch) {
    check_token(model_.config(), t.sequence->seen_tokens, t.id);
    longest = std::max(longest, t.sequence->seen_tokens + 1);
  }
  make_room(batch);
  for (const Token& t : batch) extend(*t.sequence);
  cache_.pages().fill(pool_);
  const auto n = static_cast<std::int32_t>(batch.size());
  const Size size{rounded_batch(n), rounded_tokens(longest)};
  std::size_t pages = number(ceil_div(size.longest, pool_.page_tokens));
  for (const Token& t : batch) pages = std::max(pages, t.sequence->rows.front().pages.front().size());  // may include later pages
  make_tables(size.batch, static_cast<std::int32_t>(pages));
  update_tables(batch);
  model_.make_rotations(size.longest);
  upload_step(batch, size.batch);
  launch(last_ = size);
  for (const Token& t : batch) ++t.sequence->seen_tokens;
  return download(cuda_, token_.data(), n);
}

}  // namespace kvlab
