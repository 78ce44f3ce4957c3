#include "kernels/paged_kv.h"

#include <cstring>
#include <vector>

#include "kernels/storage/quantize/quantize.h"

namespace kvlab {

namespace {

std::uint16_t half_at(const std::uint8_t* page, std::int64_t i) {
  std::uint16_t half = 0;
  std::memcpy(&half, page + 2 * i, 2);
  return half;
}
void set_half(std::uint8_t* page, std::int64_t i, std::uint16_t half) { std::memcpy(page + 2 * i, &half, 2); }

template <class T>
void pack_numbers(std::uint8_t* to, const float* x, std::int64_t n, float scale) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T number = from_float<T>(x[i] / scale);
    std::memcpy(to + i * static_cast<std::int64_t>(sizeof(T)), &number, sizeof(T));
  }
}
template <class T>
void unpack_numbers(const std::uint8_t* from, float* x, std::int64_t n, float scale) {
  for (std::int64_t i = 0; i < n; ++i) {
    T number{};
    std::memcpy(&number, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    x[i] = to_float(number) * scale;
  }
}

void pack_int8(const HostPage& p, std::uint8_t* page, const float* x, std::int32_t tokens) {
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(p.head_dim) + 2);
  for (std::int32_t t = 0; t < tokens; ++t) {
    encode_group({GroupCodec::Axis::kToken, 8, 0, true}, x + std::int64_t{t} * p.head_dim, p.head_dim, packed.data());
    std::memcpy(page + std::int64_t{t} * p.head_dim, packed.data() + 2, static_cast<std::size_t>(p.head_dim));
    std::memcpy(page + std::int64_t{p.page_tokens} * p.head_dim + 2LL * t, packed.data(), 2);
  }
}
void unpack_int8(const HostPage& p, const std::uint8_t* page, std::int32_t tokens, float* x) {
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(p.head_dim) + 2);
  for (std::int32_t t = 0; t < tokens; ++t) {
    std::memcpy(packed.data() + 2, page + std::int64_t{t} * p.head_dim, static_cast<std::size_t>(p.head_dim));
    std::memcpy(packed.data(), page + std::int64_t{p.page_tokens} * p.head_dim + 2LL * t, 2);
    decode_group({GroupCodec::Axis::kToken, 8, 0, true}, packed.data(), p.head_dim, x + std::int64_t{t} * p.head_dim);
  }
}

// Codes, and places of scale and zero among the page's fp16 numbers.
struct Group {
  std::int64_t scale = 0, zero = 0;
  std::vector<CodePlace> codes;
  std::vector<std::int64_t> elements;  // of [tokens, head_dim]
};

// f(group) for one side.
template <class F>
void for_each_group(const HostPage& p, bool keys, std::int32_t tokens, F&& f) {
  const int bits = bits_of(p.format);
  const std::int32_t width = group_channels(p.format, p.head_dim), groups = p.head_dim / width;
  const std::int64_t numbers = std::int64_t{p.page_tokens} * p.head_dim * bits / 16;  // offset of the scales
  const auto add = [&](Group& group, std::int32_t token, std::int32_t channel) {
    group.codes.push_back(keys ? k_code(bits, p.head_dim, token, channel) : v_code(bits, p.head_dim, token, channel));
    group.elements.push_back(std::int64_t{token} * p.head_dim + channel);
  };
  if (keys && is_kivi(p.format)) {
    for (std::int32_t c = 0; c < p.head_dim; ++c) {
      Group group{numbers + c, numbers + p.head_dim + c, {}, {}};
      for (std::int32_t t = 0; t < tokens; ++t) add(group, t, c);
      f(group);
    }
    return;
  }
  for (std::int32_t t = 0; t < tokens; ++t)
    for (std::int32_t c = 0; c < groups; ++c) {
      const std::int64_t at = numbers + (keys ? k_scale_place(groups, t, c) : v_scale_place(groups, t, c));
      Group group{at, at + (keys ? 2 : 4), {}, {}};
      for (std::int32_t i = 0; i < width; ++i) add(group, t, c * width + i);
      f(group);
    }
}

void pack_codes(const HostPage& p, bool keys, const float* x, std::int32_t tokens) {
  const GroupCodec codec{GroupCodec::Axis::kToken, bits_of(p.format), 0, false};
  const std::uint32_t code_mask = (1U << codec.bits) - 1U;
  std::uint8_t* const page = keys ? p.k : p.v;
  for_each_group(p, keys, tokens, [&](const Group& group) {
    std::vector<float> values;
    for (const std::int64_t i : group.elements) values.push_back(x[i]);
    const auto n = static_cast<std::int64_t>(values.size());
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(group_bytes(codec, n)));
    encode_group(codec, values.data(), n, packed.data());
    set_half(page, group.zero, half_at(packed.data(), 0));
    set_half(page, group.scale, half_at(packed.data(), 1));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t bit = i * static_cast<std::size_t>(codec.bits);
      const std::uint32_t code = static_cast<std::uint32_t>(packed[4 + bit / 8]) >> bit % 8 & code_mask;
      std::uint32_t word = 0;
      std::uint8_t* const at = page + 4LL * group.codes[i].word;
      std::memcpy(&word, at, 4);
      word = (word & ~(code_mask << group.codes[i].bit)) | code << group.codes[i].bit;
      std::memcpy(at, &word, 4);
    }
  });
}

void unpack_codes(const HostPage& p, bool keys, std::int32_t tokens, float* x) {
  const std::uint32_t code_mask = (1U << bits_of(p.format)) - 1U;
  const std::uint8_t* const page = keys ? p.k : p.v;
  for_each_group(p, keys, tokens, [&](const Group& group) {
    const float zero = to_float(f16{half_at(page, group.zero)}), scale = to_float(f16{half_at(page, group.scale)});
    for (std::size_t i = 0; i < group.codes.size(); ++i) {
      std::uint32_t word = 0;
      std::memcpy(&word, page + 4LL * group.codes[i].word, 4);
      x[group.elements[i]] = zero + scale * static_cast<float>(word >> group.codes[i].bit & code_mask);
    }
  });
}

}  // namespace

std::int64_t row_bytes(const PagedKv& kv, std::int64_t len) {
  const std::int64_t token = 2 * page_bytes(kv.format, kv.head_dim, 16) / 16;
  if (!is_kivi(kv.format)) return len * token + (kv.format == KvFormat::kFp8 ? 8 : 0);
  const std::int64_t packed = kivi_packed(kv.format, static_cast<std::int32_t>(len), kv.residual);
  const std::int64_t page = 2 * page_bytes(kv.format, kv.head_dim, kv.page_tokens);
  return packed / kv.page_tokens * page + (len - packed) * 4 * kv.head_dim;
}

void pack_page(const HostPage& p, const float* k, const float* v, std::int32_t tokens) {
  const std::int64_t n = std::int64_t{tokens} * p.head_dim;
  switch (p.format) {
    case KvFormat::kF16:
      return pack_numbers<f16>(p.k, k, n, 1), pack_numbers<f16>(p.v, v, n, 1);
    case KvFormat::kBf16:
      return pack_numbers<bf16>(p.k, k, n, 1), pack_numbers<bf16>(p.v, v, n, 1);
    case KvFormat::kFp8:
      return pack_numbers<fp8>(p.k, k, n, p.k_scale), pack_numbers<fp8>(p.v, v, n, p.v_scale);
    case KvFormat::kInt8:
      return pack_int8(p, p.k, k, tokens), pack_int8(p, p.v, v, tokens);
    default:
      return pack_codes(p, true, k, tokens), pack_codes(p, false, v, tokens);
  }
}

void unpack_page(const HostPage& p, std::int32_t tokens, float* k, float* v) {
  const std::int64_t n = std::int64_t{tokens} * p.head_dim;
  switch (p.format) {
    case KvFormat::kF16:
      return unpack_numbers<f16>(p.k, k, n, 1), unpack_numbers<f16>(p.v, v, n, 1);
    case KvFormat::kBf16:
      return unpack_numbers<bf16>(p.k, k, n, 1), unpack_numbers<bf16>(p.v, v, n, 1);
    case KvFormat::kFp8:
      return unpack_numbers<fp8>(p.k, k, n, p.k_scale), unpack_numbers<fp8>(p.v, v, n, p.v_scale);
    case KvFormat::kInt8:
      return unpack_int8(p, p.k, tokens, k), unpack_int8(p, p.v, tokens, v);
    default:
      return unpack_codes(p, true, tokens, k), unpack_codes(p, false, tokens, v);
  }
}

}  // namespace kvlab
