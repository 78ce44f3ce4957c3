#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/ceil_div.h"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/packets_cpu.h"

// For *_cpu.cpp files only, like Eigen.
namespace kvlab {

// Others take (logit, query head, query position, token).
struct NoLogitChange {
  float operator()(float z, std::int32_t /*head*/, std::int32_t /*position*/, std::int32_t /*token*/) const { return z; }
};

// Consecutive queries, all heads of a row's group: lane g * room + t is head g of query t. Exponentials are relative to the largest logit
// up to their block's end (online softmax, Milakov and Gimelshein 2018).
class ProbabilityStrip {
 public:
  ProbabilityStrip(const KvRows& kv, std::int32_t row, const Queries& q)
      : kv_(kv), row_(row), q_(q), room_(std::max(1, std::min(q.count, kMostLanes / kv.group))) {
    lanes_ = round_up(static_cast<std::int64_t>(room_) * kv.group, kLanes);
    queries_.resize(lanes_ * kv.head_dim);
    top_.resize(lanes_), sum_.resize(lanes_), factor_.resize(lanes_);
    visible_.assign(static_cast<std::size_t>(room_), 0);
  }

  // False: none left.
  template <class Change = NoLogitChange>
  bool next(Change&& change = {}) {
    first_ += count_;
    count_ = std::min(room_, q_.count - first_);
    if (count_ <= 0) return false;
    count_visible();
    gather_queries();
    if (weights_.size() < tokens() * lanes_) weights_.resize(std::min<std::int64_t>(kv_.len[row_], 2LL * tokens()) * lanes_);
    tops_.resize(ceil_div(tokens(), kBlock) * lanes_);
    top_.setConstant(std::numeric_limits<float>::lowest());
    sum_.setZero();
    for (std::int32_t i = 0; i < tokens(); i += kBlock) soften_block(i, std::min(kBlock, tokens() - i), change);
    return true;
  }

  [[nodiscard]] std::int32_t row() const { return row_; }
  [[nodiscard]] std::int32_t count() const { return count_; }
  [[nodiscard]] std::int32_t position(std::int32_t t) const { return q_.first_position + first_ + t; }
  [[nodiscard]] std::int32_t visible(std::int32_t t) const { return visible_[static_cast<std::size_t>(t)]; }
  [[nodiscard]] std::int32_t tokens() const { return visible(count_ - 1); }  // visible to the last query

  // sums [tokens()] = sum over queries of weight(t) times the group's mean or sum.
  template <class Weight>
  void sum_queries(bool mean, Weight&& weight, float* sums);
  // p [count, tokens()], 0 where masked.
  void write(AttentionStats::Group reduce, RowMatrix& p);

 private:
  static constexpr std::int32_t kMostLanes = 48, kBlock = 64;

  [[nodiscard]] std::int64_t lane(std::int32_t g, std::int32_t t) const { return static_cast<std::int64_t>(g) * room_ + t; }
  [[nodiscard]] float* weights(std::int32_t token) { return weights_.data() + token * lanes_; }
  using Map = Eigen::Map<Lanes>;
  using ConstMap = Eigen::Map<const Lanes>;

  void count_visible() {
    std::int32_t n = first_ == 0 ? 0 : seen_;
    for (std::int32_t t = 0; t < count_; ++t) {
      while (n < kv_.len[row_] && kv_.position[kv_.slot(row_, n)] <= position(t)) ++n;  // positions ascend
      visible_[static_cast<std::size_t>(t)] = n;
    }
    seen_ = n;
  }

  void gather_queries() {
    const std::int64_t d = kv_.head_dim, heads = static_cast<std::int64_t>(kv_.kv_heads) * kv_.group;
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    queries_.setZero();
    for (std::int32_t g = 0; g < kv_.group; ++g) {
      for (std::int32_t t = 0; t < count_; ++t) {
        const float* from = q_.data + ((first_ + t) * heads + row_ % kv_.kv_heads * kv_.group + g) * d;
        for (std::int64_t c = 0; c < d; ++c) queries_[c * lanes_ + lane(g, t)] = scale * from[c];
      }
    }
  }

  void hide(std::int32_t token, float* z, float value) const {
    for (std::int32_t t = 0; t < count_ && visible(t) <= token; ++t)
      for (std::int32_t g = 0; g < kv_.group; ++g) z[lane(g, t)] = value;
  }

  template <class Change>
  void soften_block(std::int32_t begin, std::int32_t count, Change&& change) {
    for (std::int32_t i = begin; i < begin + count;) {
      const std::int32_t together = std::min(begin + count - i, kv_.page_tokens - i % kv_.page_tokens);
      fill_dots(queries_.data(), lanes_, kv_.key(row_, i), together, kv_.head_dim, weights(i));
      i += together;
    }
    if constexpr (!std::is_same_v<std::remove_cvref_t<Change>, NoLogitChange>) change_logits(begin, count, change);
    const std::int32_t all_see = std::clamp(visible(0) - begin, 0, count);
    for (std::int32_t i = all_see; i < count; ++i) hide(begin + i, weights(begin + i), std::numeric_limits<float>::lowest());
    float* tops = tops_.data() + begin / kBlock * lanes_;
    for (std::int64_t l = 0; l < lanes_; l += kLanes) {
      const Lanes before = Map(top_.data() + l);
      Lanes top = before, sum = Lanes::Zero();
      for (std::int32_t i = 0; i < count; ++i) top = top.max(ConstMap(weights(begin + i) + l));
      for (std::int32_t i = 0; i < count; ++i) {
        Map z(weights(begin + i) + l);
        const Lanes e = (z - top).exp();
        z = e;
        sum += i < all_see ? e : Lanes::Zero();
      }
      Map(top_.data() + l) = top;
      Map(tops + l) = top;
      Map(sum_.data() + l) = Map(sum_.data() + l) * (before - top).exp() + sum;
    }
    for (std::int32_t i = all_see; i < count; ++i) {
      hide(begin + i, weights(begin + i), 0.0F);
      for (std::int64_t l = 0; l < lanes_; l += kLanes) Map(sum_.data() + l) += ConstMap(weights(begin + i) + l);
    }
  }

  template <class Change>
  void change_logits(std::int32_t begin, std::int32_t count, Change&& change) {
    for (std::int32_t i = begin; i < begin + count; ++i) {
      float* z = weights(i);
      for (std::int32_t g = 0; g < kv_.group; ++g)
        for (std::int32_t t = 0; t < count_; ++t)
          if (i < visible(t)) z[lane(g, t)] = change(z[lane(g, t)], row_ % kv_.kv_heads * kv_.group + g, position(t), i);
    }
  }

  // From the weights of the block at `begin` to probabilities.
  void fill_factors(std::int32_t begin) {
    const float* tops = tops_.data() + begin / kBlock * lanes_;
    for (std::int64_t l = 0; l < lanes_; l += kLanes) {
      const Lanes sum = ConstMap(sum_.data() + l), scale = (ConstMap(tops + l) - ConstMap(top_.data() + l)).exp();
      const Lanes factor = scale / sum;
      Map(factor_.data() + l) = (sum > 0.0F).select(factor, Lanes::Zero());
    }
  }

  const KvRows& kv_;
  std::int32_t row_;
  const Queries& q_;
  std::int32_t room_, first_ = 0, count_ = 0, seen_ = 0;  // queries per strip, first, count, visible tokens
  std::int64_t lanes_ = 0;
  std::vector<std::int32_t> visible_;  // [count] ascending
  Eigen::ArrayXf queries_;             // [head_dim, lanes]
  Eigen::ArrayXf weights_;             // [tokens, lanes]
  Eigen::ArrayXf tops_;                // [blocks, lanes] largest logit so far
  Eigen::ArrayXf top_, sum_, factor_;  // [lanes]
};

template <class Weight>
void ProbabilityStrip::sum_queries(bool mean, Weight&& weight, float* sums) {
  Eigen::ArrayXf of_lane = Eigen::ArrayXf::Zero(lanes_);
  for (std::int32_t g = 0; g < kv_.group; ++g)
    for (std::int32_t t = 0; t < count_; ++t) of_lane[lane(g, t)] = mean ? weight(t) / static_cast<float>(kv_.group) : weight(t);
  for (std::int32_t begin = 0; begin < tokens(); begin += kBlock) {
    fill_factors(begin);
    for (std::int64_t l = 0; l < lanes_; ++l) factor_[l] *= of_lane[l];
    for (std::int32_t i = begin; i < std::min(begin + kBlock, tokens()); ++i) {
      Lanes sum = Lanes::Zero();
      for (std::int64_t l = 0; l < lanes_; l += kLanes) sum += ConstMap(weights(i) + l) * ConstMap(factor_.data() + l);
      sums[i] = sum.sum();
    }
  }
}

inline void ProbabilityStrip::write(AttentionStats::Group reduce, RowMatrix& p) {
  p.resize(count_, tokens());
  const float share = reduce == AttentionStats::Group::kMean ? static_cast<float>(kv_.group) : 1.0F;
  for (std::int32_t begin = 0; begin < tokens(); begin += kBlock) {
    fill_factors(begin);
    for (std::int32_t i = begin; i < std::min(begin + kBlock, tokens()); ++i) {
      float* e = weights(i);
      for (std::int64_t l = 0; l < lanes_; l += kLanes) Map(e + l) *= ConstMap(factor_.data() + l);
      for (std::int32_t t = 0; t < count_; ++t) {
        float x = e[t];
        for (std::int32_t g = 1; g < kv_.group; ++g)
          x = reduce == AttentionStats::Group::kMax ? std::max(x, e[lane(g, t)]) : x + e[lane(g, t)];
        p(t, i) = x / share;
      }
    }
  }
}

}  // namespace kvlab
