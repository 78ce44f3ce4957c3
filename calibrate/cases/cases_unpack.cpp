// Formats without code groups, and plain copies, at recipes' default sizes.

#include "base/half.h"
#include "calibrate/cases/op_case.h"
#include "kernels/storage/cast/cast.h"
#include "kernels/storage/low_rank/low_rank.h"
#include "kernels/storage/outliers_op.h"
#include "kernels/storage/sparsify_op.h"
#include "kernels/storage/token_copy_op.h"

namespace kvlab {

namespace {

template <class Op>
void add_unpack_family(OpId id, std::function<Op(Buffers&, const Shape&)> build,
                       std::function<bool(TimedDevice&, const Op&, const Run&)> matches, std::vector<KernelFamily>& families) {
  add_policy_families<Op>(name_of(id), kRowAxes,
                          {{{1, 4096, 2, 64}, {8, 2048, 2, 64}}, {{2, 21, 2, 32}}, {{1, 8192, 8, 128}, {64, 4096, 8, 128}}},
                          std::move(build), std::move(matches), families);
}

// In sampled rows, keys are expected(row, token, channel).
template <class F>
bool keys_are(TimedDevice& device, const KvRows& kv, const Run& run, F&& expected) {
  run();
  const std::int64_t d = kv.head_dim;
  RelativeError error;
  for (const std::int64_t r : sampled(kv.num_rows, 3)) {
    const std::vector<float> out = row_vectors(device, kv, r, false);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(out.size()); ++i) error.add(nth(out, i), expected(r, i / d, i % d));
  }
  return error.below(tolerance_of(ElementType::kBf16));
}

void add_token_copy(std::vector<KernelFamily>& families) {
  add_unpack_family<TokenCopy>(
      OpId::kTokenCopy,
      [](Buffers& b, const Shape& s) {
        TokenCopy a;
        a.tokens = all_tokens(b, s);
        a.way = TokenCopy::Way::kIntoPages;
        a.stored = b.elements(a.tokens.total() * s.at("head_dim"));
        return a;
      },
      [](TimedDevice& device, const TokenCopy& a, const Run& run) {
        const KvRows& kv = a.tokens.kv;
        const std::vector<float> stored = read_floats(device, a.stored, a.tokens.total() * kv.head_dim, kv.type);
        return keys_are(device, kv, run, [&](std::int64_t row, std::int64_t token, std::int64_t c) {
          return nth(stored, (a.tokens.first[row] + token) * kv.head_dim + c);
        });
      },
      families);
}

// fp8: 16 numbers of one binade in turn.
void add_cast(std::vector<KernelFamily>& families) {
  const auto code = [](std::int64_t i) { return static_cast<std::uint8_t>(0x30 + i % 16); };
  add_unpack_family<Cast>(
      OpId::kCast,
      [=](Buffers& b, const Shape& s) {
        Cast a;
        a.unpacks = true, a.tokens = all_tokens(b, s), a.type = StoredType::kFp8E4M3;
        std::vector<std::uint8_t> stored(static_cast<std::size_t>(a.tokens.total() * s.at("head_dim")));
        for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = code(static_cast<std::int64_t>(i));
        a.stored = b.put(stored);
        return a;
      },
      [=](TimedDevice& device, const Cast& a, const Run& run) {
        return keys_are(device, a.tokens.kv, run, [&](std::int64_t row, std::int64_t token, std::int64_t c) {
          return from_stored(a.type, code((a.tokens.first[row] + token) * a.tokens.kv.head_dim + c));
        });
      },
      families);
}

// Keeps every other channel.
void add_unsparsify(std::vector<KernelFamily>& families) {
  const auto number = [](std::int64_t c) { return c % 2 == 0 ? 0.0F : 1.0F + 0.25F * static_cast<float>(c % 8); };
  add_unpack_family<Sparsify>(
      OpId::kUnsparsify,
      [=](Buffers& b, const Shape& s) {
        Sparsify a;
        a.kind = Sparsify::Kind::kUnpack, a.tokens = all_tokens(b, s), a.keep = static_cast<std::int32_t>(s.at("head_dim") / 2);
        std::vector<float> vector;
        for (std::int64_t c = 0; c < s.at("head_dim"); ++c) vector.push_back(number(c));
        // One token in its own page.
        const std::int32_t len[] = {1}, page_begin[] = {0}, page[] = {0};
        const std::int64_t first[] = {0, 1};
        KvRows one = a.tokens.kv;
        one.num_rows = 1, one.kv_heads = 1, one.type = ElementType::kF32, one.page_tokens = 1;
        one.len = len, one.first = first, one.page_begin = page_begin, one.page = page, one.k = vector.data();
        std::vector<std::uint8_t> packed(static_cast<std::size_t>(most_sparse_bytes(one.head_dim, a.keep))), all;
        run_cpu(Sparsify{{one, first, page, false}, a.keep, Sparsify::Kind::kPack, packed.data()});
        for (std::int64_t i = 0; i < a.tokens.total(); ++i) all.insert(all.end(), packed.begin(), packed.end());
        a.packed = b.put(all);
        return a;
      },
      [=](TimedDevice& device, const Sparsify& a, const Run& run) {
        return keys_are(device, a.tokens.kv, run, [&](std::int64_t, std::int64_t, std::int64_t c) { return number(c); });
      },
      families);
}

// Rank 4, of each row.
void add_low_rank_rebuild(std::vector<KernelFamily>& families) {
  const auto left = [](std::int64_t token, std::int64_t k) { return 0.5F * static_cast<float>(1 + (token + k) % 3); };
  const auto right = [](std::int64_t k, std::int64_t c) { return 0.25F * static_cast<float>(1 + (k + c) % 5); };
  add_unpack_family<LowRankFactor>(
      OpId::kLowRankRebuild,
      [=](Buffers& b, const Shape& s) {
        LowRankFactor a;
        a.unpacks = true, a.tokens = all_tokens(b, s), a.rank = 4;
        std::vector<std::uint16_t> l, r;
        for (std::int64_t row = 0; row < a.tokens.kv.num_rows; ++row) {
          for (std::int64_t i = 0; i < 4 * s.at("len"); ++i) l.push_back(float_to_half(left(i / 4, i % 4)));
          for (std::int64_t i = 0; i < 4 * s.at("head_dim"); ++i)
            r.push_back(float_to_half(right(i / s.at("head_dim"), i % s.at("head_dim"))));
        }
        a.left = b.put(l), a.right = b.put(r);
        return a;
      },
      [=](TimedDevice& device, const LowRankFactor& a, const Run& run) {
        return keys_are(device, a.tokens.kv, run, [&](std::int64_t, std::int64_t token, std::int64_t c) {
          double sum = 0;
          for (std::int64_t k = 0; k < 4; ++k) sum += static_cast<double>(left(token, k)) * right(k, c);
          return sum;
        });
      },
      families);
}

// The first channels of each token.
void add_restore_outliers(std::vector<KernelFamily>& families) {
  add_unpack_family<Outliers>(
      OpId::kRestoreOutliers,
      [](Buffers& b, const Shape& s) {
        Outliers a;
        a.unpacks = true, a.tokens = all_tokens(b, s);
        const std::int32_t each = outliers_of(a.share, s.at("head_dim"));
        std::vector<std::uint16_t> value, place;
        for (std::int64_t i = 0; i < outlier_numbers(a); ++i) {
          value.push_back(float_to_half(static_cast<float>(2 + i % each)));
          place.push_back(static_cast<std::uint16_t>(i % each));
        }
        a.value = b.put(value), a.place.narrow = b.put(place);
        return a;
      },
      [](TimedDevice& device, const Outliers& a, const Run& run) {
        const KvRows& kv = a.tokens.kv;
        const std::int64_t each = outliers_of(a.share, kv.head_dim), d = kv.head_dim;
        const std::vector<float> before = row_vectors(device, kv, 0, false);
        run();
        const std::vector<float> after = row_vectors(device, kv, 0, false);
        for (std::size_t i = 0; i < after.size(); ++i) {
          const std::int64_t c = static_cast<std::int64_t>(i) % d;
          if (after[i] != (c < each ? static_cast<float>(2 + c) : before[i])) return false;
        }
        return true;
      },
      families);
}

}  // namespace

void add_unpack_cases(std::vector<KernelFamily>& families) {
  add_token_copy(families);
  add_cast(families);
  add_unsparsify(families);
  add_low_rank_rebuild(families);
  add_restore_outliers(families);
}

}  // namespace kvlab
