#include "calibrate/cases/buffers.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "base/ceil_div.h"
#include "base/hash.h"
#include "calibrate/cases/op_case.h"

namespace kvlab {

namespace {

constexpr std::int64_t kPoolBytes = 64 << 20, kAlign = 256;
constexpr std::int64_t kNormals = (1 << 20) + 7;  // drawn once; longer arrays repeat them at an offset

template <class T>
const std::vector<T>& normals() {
  static const std::vector<T> drawn = [] {
    std::vector<T> x(static_cast<std::size_t>(kNormals));
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    for (T& value : x) value = from_float<T>(normal(random));
    return x;
  }();
  return drawn;
}

template <class T>
void fill_normal(TimedDevice& device, void* to, std::int64_t n, std::uint64_t seed) {
  const std::vector<T>& from = normals<T>();
  auto begin = static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(kNormals));
  for (std::int64_t done = 0; done < n;) {
    const std::int64_t count = std::min(n - done, kNormals - begin);
    device.to_device(static_cast<T*>(to) + done, from.data() + begin, count * static_cast<std::int64_t>(sizeof(T)));
    done += count;
    begin = 0;
  }
}

std::int64_t aligned(std::int64_t bytes) { return round_up(std::max<std::int64_t>(bytes, 1), kAlign); }

void fill(TimedDevice& device, void* to, std::int64_t n, ElementType type, std::uint64_t seed) {
  if (type == ElementType::kF16)
    fill_normal<f16>(device, to, n, seed);
  else if (type == ElementType::kBf16)
    fill_normal<bf16>(device, to, n, seed);
  else
    fill_normal<float>(device, to, n, seed);
}

constexpr std::int32_t kPageTokens = 16;

std::int64_t value_or(const Shape& shape, const std::string& key, std::int64_t otherwise) {
  const auto at = shape.find(key);
  return at == shape.end() ? otherwise : at->second;
}

}  // namespace

void* DevicePool::take(std::int64_t bytes) {
  const std::int64_t rounded = aligned(bytes);
  if (rounded > left_) {
    const std::int64_t size = std::max(rounded, kPoolBytes);
    pieces_.push_back(device_.allocate(size));
    if (size - rounded <= left_) return pieces_.back().get();  // the rest of the previous piece is larger
    at_ = static_cast<char*>(pieces_.back().get());
    left_ = size;
  }
  void* taken = at_;
  at_ += rounded;
  left_ -= rounded;
  return taken;
}

std::int64_t SharedNumbers::begin_case() {
  for (auto& [type, pieces] : pieces_)
    for (Piece& piece : pieces) piece.taken = 0;
  return next_read_;
}

void* SharedNumbers::take(std::int64_t n, ElementType type) {
  const std::int64_t bytes = aligned(n * element_bytes(type));
  std::vector<Piece>& pieces = pieces_[type];
  auto at = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.bytes - piece.taken >= bytes; });
  if (at == pieces.end()) {
    const std::int64_t size = std::max(bytes, kPoolBytes);
    pieces.push_back({device_.allocate(size), size});
    at = pieces.end() - 1;
    fill(device_, at->memory.get(), size / element_bytes(type), type, pieces.size());
  }
  void* const taken = static_cast<char*>(at->memory.get()) + at->taken;
  at->taken += bytes;
  return taken;
}

std::uint64_t Buffers::draw() { return seed_ = hash_combine(seed_, 0x9E3779B97F4A7C15U); }

Buffers::Taken Buffers::take(std::int64_t bytes) {
  if (next_ < taken_.size()) return {taken_[next_++], false};
  return keep(pool_.take(bytes), bytes);
}

Buffers::Taken Buffers::keep(void* memory, std::int64_t bytes) {
  bytes_ += bytes;
  taken_.push_back(memory);
  ++next_;
  return {memory, true};
}

void* Buffers::poisoned(std::int64_t bytes) {
  static const std::vector<std::uint8_t> ones(1 << 20, 0xFF);
  const Taken to = take(bytes);
  for (std::int64_t done = 0; to.is_fresh && done < bytes; done += static_cast<std::int64_t>(ones.size()))
    device_.to_device(static_cast<char*>(to.memory) + done, ones.data(), std::min<std::int64_t>(bytes - done, 1 << 20));
  return to.memory;
}

void* Buffers::normal(std::int64_t n, ElementType type) {
  const std::int64_t bytes = n * element_bytes(type);
  const std::uint64_t seed = draw();
  if (shared_ != nullptr && next_ == taken_.size()) return keep(shared_->take(n, type), bytes).memory;
  const auto [to, is_fresh] = take(bytes);
  if (is_fresh) fill(device_, to, n, type, seed);
  return to;
}

std::vector<std::int32_t> shuffled(Buffers& buffers, std::int64_t n) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[buffers.draw() % i]);
  return order;
}

std::vector<float> read_floats(TimedDevice& device, const void* from, std::int64_t n, ElementType type) {
  if (type == ElementType::kF32) return read_values(device, static_cast<const float*>(from), n);
  const std::vector<std::uint16_t> bits = read_values(device, static_cast<const std::uint16_t*>(from), n);
  std::vector<float> floats(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) floats[i] = type == ElementType::kF16 ? to_float(f16{bits[i]}) : to_float(bf16{bits[i]});
  return floats;
}

RowsSpec rows_spec(const Shape& shape) {
  RowsSpec spec;
  spec.batch = value_or(shape, "batch", 1);
  spec.kv_heads = shape.at("kv_heads");
  spec.group = value_or(shape, "q_heads", spec.kv_heads) / spec.kv_heads;
  spec.len = shape.at("len");
  spec.head_dim = shape.at("head_dim");
  return spec;
}

std::int64_t* equal_rows(Buffers& buffers, std::int64_t rows, std::int64_t each) {
  std::vector<std::int64_t> first;
  for (std::int64_t r = 0; r <= rows; ++r) first.push_back(r * each);
  return buffers.host(std::move(first));
}

std::int32_t* equal_counts(Buffers& buffers, std::int64_t rows, std::int64_t count) {
  return buffers.host(std::vector<std::int32_t>(static_cast<std::size_t>(rows), static_cast<std::int32_t>(count)));
}

KvRows paged_rows(Buffers& buffers, const RowsSpec& spec) {
  const std::int64_t rows = spec.batch * spec.kv_heads, each = ceil_div(spec.len, kPageTokens);
  KvRows kv;
  kv.num_rows = static_cast<std::int32_t>(rows), kv.kv_heads = static_cast<std::int32_t>(spec.kv_heads);
  kv.group = static_cast<std::int32_t>(spec.group), kv.head_dim = static_cast<std::int32_t>(spec.head_dim);
  kv.kv_bytes = static_cast<std::int32_t>(element_bytes(buffers.type())), kv.type = buffers.type();
  kv.page_tokens = kPageTokens;
  kv.pool_tokens = rows * each * kPageTokens;
  kv.len = equal_counts(buffers, rows, spec.len), kv.first = equal_rows(buffers, rows, spec.len);
  std::vector<std::int32_t> page = shuffled(buffers, rows * each), begin;
  for (std::int64_t r = 0; r < rows; ++r) begin.push_back(static_cast<std::int32_t>(r * each));
  kv.page = buffers.host(std::move(page)), kv.page_begin = buffers.host(std::move(begin));
  kv.k = static_cast<float*>(buffers.elements(kv.pool_tokens * spec.head_dim));
  kv.v = static_cast<float*>(buffers.elements(kv.pool_tokens * spec.head_dim));
  std::vector<std::int32_t> position(static_cast<std::size_t>(kv.pool_tokens));
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    for (std::int32_t i = 0; i < kv.len[r]; ++i) nth(position, kv.slot(r, i)) = i;
  kv.position = buffers.put(position);
  return kv;
}

ListedTokens all_tokens(Buffers& buffers, const Shape& s) {
  ListedTokens tokens;
  tokens.kv = paged_rows(buffers, rows_spec(s));
  tokens.first = tokens.kv.first;
  std::vector<std::int32_t> index;
  for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r)
    for (std::int32_t i = 0; i < tokens.kv.len[r]; ++i) index.push_back(i);
  tokens.index = buffers.put(index);
  return tokens;
}

Queries* queries_at_end(Buffers& buffers, const KvRows& kv, std::int32_t count) {
  std::vector<Queries> queries;
  for (std::int32_t s = 0; s < kv.num_sequences(); ++s)
    queries.push_back(
        {buffers.activations().floats(std::int64_t{count} * kv.kv_heads * kv.group * kv.head_dim), count, kv.len[s * kv.kv_heads] - count});
  return buffers.host(std::move(queries));
}

std::vector<float> row_vectors(TimedDevice& device, const KvRows& kv, std::int64_t row, bool values) {
  const auto* from = reinterpret_cast<const char*>(values ? kv.v : kv.k);
  std::vector<float> all;
  for_each_run(kv, static_cast<std::int32_t>(row), [&](const KvRun& run) {
    const std::vector<float> part =
        read_floats(device, from + run.slot * kv.head_dim * element_bytes(kv.type), std::int64_t{run.count} * kv.head_dim, kv.type);
    all.insert(all.end(), part.begin(), part.end());
  });
  return all;
}

}  // namespace kvlab
