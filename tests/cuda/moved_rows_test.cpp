#include "kernels/model/rope/rotary.h"
#include "kernels/storage/compact/compact.h"
#include "kernels/storage/evict_rows_op.h"
#include "kernels/storage/page_copy/page_copy.h"
#include "kernels/storage/turn_keys_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Each token of a row is kept with a chance of 1 in `every`; every = 0: none, 1: all.
struct KeptLists {
  KeptLists(const std::vector<std::int32_t>& lengths, unsigned every, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const std::int32_t n : lengths) {
      for (std::int32_t i = 0; i < n; ++i)
        if (every > 0 && random() % every == 0) index.push_back(i);
      first.push_back(static_cast<std::int64_t>(index.size()));
      longest = std::max(longest, static_cast<std::int32_t>(first.back() - first[first.size() - 2]));
    }
  }
  std::vector<std::int64_t> first{0};
  std::vector<std::int32_t> index;
  std::int32_t longest = 0;
};

class CompactCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int32_t head_dim, const std::vector<std::int32_t>& lengths, unsigned every, std::uint64_t seed) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << " " << head_dim << " every " << every << " seed " << seed);
    const KeptLists kept(lengths, every, seed);
    const DeviceBuffer<std::int32_t> index(kept.index);
    RowsFixture<T> rows({1, 1, head_dim, 16, 2}, lengths, seed);
    std::uint32_t next = 1;
    rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
      for (std::size_t w = 0; w < 2; ++w) rows.words[w * rows.position.size() + slot] = next++;
    });
    const auto all = same_in_every_order([&] {
      rows.upload();
      run_cuda(CompactRows{rows.device(), kept.first.data(), index.data()}, cuda());
      return rows.device_bits(cuda());
    });
    run_cpu(CompactRows{rows.host(), kept.first.data(), kept.index.data()});
    EXPECT_EQ(all, rows.bits());
  }
};

TEST_F(CompactCuda, MovesKeptTokensToTheFront) {
  for (const unsigned every : {0U, 1U, 2U, 5U})
    for (const std::int32_t head_dim : {7, 8, 64, 128}) {
      check<bf16>(head_dim, {33, 0, 1, 17, 150}, every, every);
      check<float>(head_dim, {16, 64}, every, every + 10);
    }
  check<f16>(128, {300}, 2, 21);                              // several chunks
  check<bf16>(8, {2500, 1100}, 2, 22);                        // of many tokens each
  check<bf16>(64, std::vector<std::int32_t>(40, 20), 2, 23);  // rows enough that vectors stay whole
}

TEST_F(CompactCuda, GathersIntoOtherPages) {
  for (const std::int32_t head_dim : {7, 8, 64, 128, 576}) {
    const std::vector<std::int32_t> lengths{33, 0, 1, 200};
    RowsFixture<bf16> from({1, 1, head_dim, 16, 1}, lengths, 31), to({1, 1, head_dim, 8, 1}, lengths, 32);
    const KeptLists kept(lengths, 3, 33);
    const DeviceBuffer<std::int32_t> index(kept.index);
    const DeviceBuffer<std::int64_t> first(kept.first);
    const DeviceRows source = on_device(from.device(), cuda()), target = on_device(to.device(), cuda());
    const DeviceGather a{source, target, first.data(), index.data(), kept.first.back(), kept.longest, ElementType::kBf16};
    run_cuda(a, cuda());
    const KvRows in = from.host(), out = to.host();
    for (std::int32_t r = 0; r < in.num_rows; ++r)
      for (std::int64_t i = kept.first[static_cast<std::size_t>(r)]; i < kept.first[static_cast<std::size_t>(r) + 1]; ++i) {
        const auto t = static_cast<std::int32_t>(i - kept.first[static_cast<std::size_t>(r)]);
        const std::int32_t token = kept.index[static_cast<std::size_t>(i)];
        std::copy_n(in.key(r, token), head_dim, out.key(r, t));
        std::copy_n(in.value(r, token), head_dim, out.value(r, t));
        out.word(0, r, t) = in.word(0, r, token);
        out.position[out.slot(r, t)] = in.position[in.slot(r, token)];
      }
    EXPECT_EQ(to.device_bits(cuda()), to.bits()) << head_dim;  // slots that nothing was copied to are as before
  }
}

TEST_F(CompactCuda, CountsTheBytesOfTheMove) {
  DeviceGather a;
  a.from.head_dim = 128, a.kept = 10;
  EXPECT_EQ(bytes(shape(a)), 10 * (4 * 128 * 2 + 4));
}

class EvictCuda : public CudaTest {
 protected:
  static std::vector<std::uint32_t> with(std::vector<std::uint32_t> bits, const std::vector<std::int32_t>& dropped) {
    bits.insert(bits.end(), dropped.begin(), dropped.end());
    return bits;
  }

  // Of each row up to `most` tokens go. Scores have many equal ones; the places of some tokens are exchanged.
  template <class T>
  void check(std::int32_t head_dim, const std::vector<std::int32_t>& lengths, std::int32_t most, EvictRows::Choice choice,
             std::uint64_t seed) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << " " << head_dim << " most " << most << " seed " << seed);
    std::mt19937_64 random(seed);
    RowsFixture<T> rows({1, 1, head_dim, 16, 2}, lengths, seed);
    std::uint32_t next = 1;
    rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
      for (std::size_t w = 0; w < 2; ++w) rows.words[w * rows.position.size() + slot] = next++;
    });
    std::vector<std::int64_t> first{0};
    for (const std::int32_t n : lengths)
      first.push_back(first.back() + std::min<std::int32_t>(n, static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(most + 1))));
    std::vector<float> scores;
    std::vector<std::int32_t> from, guess, listed;
    const KvRows kv = rows.host();
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int32_t n = kv.len[r];
      const auto position = [&](std::int32_t i) -> std::int32_t& { return rows.position[static_cast<std::size_t>(kv.slot(r, i))]; };
      for (std::int32_t i = 0; i < n; ++i) {
        scores.push_back(random() % 9 == 0 ? std::numeric_limits<float>::infinity() : static_cast<float>(random() % 5));
        if (choice == EvictRows::Choice::kPositions) position(i) = 10 + (i + 3) % n;
      }
      for (std::int32_t i = 0; i < n; i += 5) std::swap(position(i), position(n - 1));
      if (n > 4) scores[scores.size() - 3] = std::numeric_limits<float>::quiet_NaN();
      from.push_back(10), guess.push_back(random() % 3 == 0 ? n - 3 : static_cast<std::int32_t>(random() % 4));
      std::vector<std::int32_t> all(static_cast<std::size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      const auto d = static_cast<std::ptrdiff_t>(first[static_cast<std::size_t>(r) + 1] - first[static_cast<std::size_t>(r)]);
      std::sort(all.begin(), all.begin() + d);
      listed.insert(listed.end(), all.begin(), all.begin() + d);
    }
    const DeviceBuffer<float> device_scores(scores);
    DeviceBuffer<std::int32_t> dropped(listed);
    EvictRows op{rows.device(), first.data(), dropped.data(), choice, device_scores.data(), from.data(), guess.data()};
    const auto all = same_in_every_order([&] {
      rows.upload();
      op.kv = rows.device();
      run_cuda(op, cuda());
      return with(rows.device_bits(cuda()), dropped.to_host(cuda().stream()));
    });
    op.kv = rows.host(), op.dropped = listed.data(), op.scores = scores.data();
    run_cpu(op);
    EXPECT_EQ(all, with(rows.bits(), listed));
  }
};

TEST_F(EvictCuda, IsTheCpusResult) {
  std::uint64_t seed = 1;
  for (const auto choice : {EvictRows::Choice::kLowest, EvictRows::Choice::kPositions, EvictRows::Choice::kListed})
    for (const std::int32_t most : {1, 5, EvictRows::kMost})
      for (const std::int32_t head_dim : {7, 8, 128}) {
        check<bf16>(head_dim, {33, 0, 1, 17, 600}, most, choice, ++seed);
        check<float>(head_dim, {40, 64}, most, choice, ++seed);
      }
}

class RenumberCuda : public CudaTest {
 protected:
  // Rows of two sequences with two KV heads; every third token is dropped, and some at the front of odd rows.
  struct Lists {
    explicit Lists(const std::vector<std::int32_t>& lengths, std::int32_t head_dim) {
      for (std::size_t r = 0; r < lengths.size(); ++r) {
        for (std::int32_t i = 0; i < lengths[r]; ++i)
          if (i % 3 != 1 && (r % 2 == 0 || i > 5)) index.push_back(i);
        first.push_back(static_cast<std::int64_t>(index.size()));
      }
      for (const std::int64_t tokens : {4000, 131}) {
        end.push_back(static_cast<std::int32_t>(tokens));
        const std::vector<float> own = Rotary({1e4}, head_dim).frequencies(tokens);
        frequencies.insert(frequencies.end(), own.begin(), own.end());
      }
    }
    [[nodiscard]] Places places(const std::int32_t* at, bool has_rope) const {
      return {first.data(), at, end.data(), has_rope ? frequencies.data() : nullptr};
    }
    std::vector<std::int64_t> first{0};
    std::vector<std::int32_t> index, end;
    std::vector<float> frequencies;
  };

  template <class T>
  static void expect_near(const std::vector<float>& found, const std::vector<float>& expected) {
    const double tolerance = std::is_same_v<T, float> ? 2e-5 : std::is_same_v<T, f16> ? 4e-3 : 4e-2;  // one rounding of values up to 5
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (std::isnan(expected[i])) continue;  // no token is there
      ASSERT_TRUE(std::abs(found[i] - expected[i]) <= tolerance) << i << ": " << found[i] << " for " << expected[i];
    }
  }

  template <class T>
  void check(std::int32_t head_dim, const std::vector<std::int32_t>& lengths, bool has_rope) {
    const Lists lists(lengths, head_dim);
    Twice<std::int32_t> index(lists.index);
    const RowsShape shape{2, 1, head_dim, 16, 0};
    RowsFixture<T> rows(shape, lengths, 5), out({2, 1, head_dim, 8, 0}, lengths, 6);
    run_both([&](bool gpu) { return TurnKeys{rows.at(gpu), lists.places(index.at(gpu), has_rope), true, out.at(gpu)}; });
    expect_near<T>(out.device_keys(cuda()), out.k);
    expect_near<T>(out.device_values(cuda()), out.v);
    EXPECT_EQ(out.device_positions(cuda()), out.position);
    expect_near<T>(rows.device_keys(cuda()), rows.k);
    run_both([&](bool gpu) { return TurnKeys{rows.at(gpu), lists.places(index.at(gpu), has_rope)}; });
    expect_near<T>(rows.device_keys(cuda()), rows.k);
    expect_near<T>(rows.device_values(cuda()), rows.v);
  }
};

TEST_F(RenumberCuda, TurnsKeysAsTheCpuDoes) {
  for (const bool has_rope : {true, false})
    for (const std::int32_t head_dim : {2, 64, 128}) {
      check<float>(head_dim, {200, 33, 0, 131}, has_rope);
      check<f16>(head_dim, {1, 700, 17, 16}, has_rope);
      check<bf16>(head_dim, {64, 65, 100, 3}, has_rope);
    }
}

using Method = PageCopy::Method;

struct FreePinned {
  void operator()(std::uint8_t* p) const noexcept { cuda::free_pinned(p); }
};
using Pinned = std::unique_ptr<std::uint8_t, FreePinned>;
Pinned pinned(const std::vector<std::uint8_t>& x) {
  Pinned p(static_cast<std::uint8_t*>(cuda::allocate_pinned(static_cast<std::int64_t>(x.size()))));
  std::copy(x.begin(), x.end(), p.get());
  return p;
}

class PageCopyCuda : public CudaTest {
 protected:
  void check(std::int64_t pages, std::int64_t page_bytes, Method method, bool lists_on_host, bool to_gpu) {
    SCOPED_TRACE(testing::Message() << pages << " pages of " << page_bytes << " method " << static_cast<int>(method) << " lists on host "
                                    << lists_on_host << " to GPU " << to_gpu);
    const std::int64_t pool = pages + 5;
    std::mt19937 random(51);
    std::vector<std::uint8_t> source(static_cast<std::size_t>(pool * page_bytes)), target(source.size(), 7);
    for (std::uint8_t& x : source) x = static_cast<std::uint8_t>(random());
    std::vector<std::int32_t> from(static_cast<std::size_t>(pool)), to(from.size());
    std::iota(from.begin(), from.end(), 0), std::iota(to.begin(), to.end(), 0);
    std::shuffle(from.begin(), from.end(), random), std::shuffle(to.begin(), to.end(), random);
    from.resize(static_cast<std::size_t>(pages)), to.resize(from.size());
    if (pages > 3) from[1] = -1, to[3] = -1;
    std::vector<std::uint8_t> expected = target;
    run_cpu(PageCopy{source.data(), expected.data(), from.data(), to.data(), pages, page_bytes});

    const Pinned host = pinned(to_gpu ? source : target);
    const DeviceBuffer<std::uint8_t> device(to_gpu ? target : source);
    const DeviceBuffer<std::int32_t> device_from(from), device_to(to);
    run_cuda(
        PageCopy{to_gpu ? host.get() : device.data(), to_gpu ? device.data() : host.get(), lists_on_host ? from.data() : device_from.data(),
                 lists_on_host ? to.data() : device_to.data(), pages, page_bytes, lists_on_host, method},
        cuda());
    cuda().synchronize();
    const std::vector<std::uint8_t> got =
        to_gpu ? device.to_host(cuda().stream()) : std::vector<std::uint8_t>(host.get(), host.get() + target.size());
    EXPECT_TRUE(got == expected);
  }
};

TEST_F(PageCopyCuda, CopiesListedPagesBothWays) {
  for (const bool to_gpu : {false, true})
    for (const std::int64_t pages : {0, 1, 4, 7, 40})
      for (const std::int64_t page_bytes : {16, 8192, 4112}) {
        check(pages, page_bytes, Method::kKernel, true, to_gpu);
        check(pages, page_bytes, Method::kKernel, false, to_gpu);
        check(pages, page_bytes, Method::kEngine, true, to_gpu);
        check(pages, page_bytes, Method::kAutomatic, true, to_gpu);
        check(pages, page_bytes, Method::kAutomatic, false, to_gpu);
      }
  check(5, 100, Method::kAutomatic, true, true);
  check(200, 8192, Method::kKernel, true, true);  // more than the grid takes at once
}

TEST_F(PageCopyCuda, ChoosesByRuns) {
  std::vector<std::int32_t> from(256), to(256);
  std::iota(from.begin(), from.end(), 3), std::iota(to.begin(), to.end(), 9);
  PageCopy a{nullptr, nullptr, from.data(), to.data(), 256, 8192};
  EXPECT_EQ(chosen_method(a), Method::kEngine);  // one run
  for (std::size_t i = 0; i < 256; i += 2) std::swap(from[i], from[i + 1]);
  EXPECT_EQ(chosen_method(a), Method::kKernel);
  a.page_bytes = 1 << 20;
  EXPECT_EQ(chosen_method(a), Method::kEngine);  // long pages
  a.lists_on_host = false;
  EXPECT_EQ(chosen_method(a), Method::kKernel);
  a.lists_on_host = true, a.page_bytes = 100;
  EXPECT_EQ(chosen_method(a), Method::kEngine);
}

TEST_F(PageCopyCuda, RefusesWhatAMethodCannot) {
  const std::int32_t page = 0;
  EXPECT_THROW(run_cuda(PageCopy{nullptr, nullptr, &page, &page, 1, 24, true, Method::kKernel}, cuda()), CudaError);
  EXPECT_THROW(run_cuda(PageCopy{nullptr, nullptr, &page, &page, 1, 32, false, Method::kEngine}, cuda()), CudaError);
  EXPECT_EQ(bytes(shape(PageCopy{nullptr, nullptr, &page, &page, 3, 8192})), 3 * 8200);
}

}  // namespace
}  // namespace kvlab
