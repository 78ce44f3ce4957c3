#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "tests/kv/selector_fixture.h"

namespace kvlab::test {

// How many of `now` are not in `before`.
inline std::int64_t newcomers(const std::vector<std::int32_t>& now, const std::vector<std::int32_t>& before) {
  std::vector<std::int32_t> out;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(), std::back_inserter(out));
  return static_cast<std::int64_t>(out.size());
}

// Records counts that depend on data, then plays them where there are only shapes.
class Played final : public CountSource {
 public:
  void fill(std::string_view purpose, int, std::span<std::int32_t> counts) override {
    for (std::int32_t& c : counts) {
      if (!plays_) {
        all_.emplace_back(purpose, c);
      } else if (at_ == all_.size() || all_[at_].first != purpose || all_[at_].second > c) {
        fits_ = false;  // asked for something else, or the recorded count exceeds its bound
      } else {
        c = all_[at_++].second;
      }
    }
  }
  void play() { plays_ = true; }
  [[nodiscard]] bool fitted() const { return fits_ && at_ == all_.size(); }

 private:
  bool plays_ = false, fits_ = true;
  std::vector<std::pair<std::string, std::int32_t>> all_;
  std::size_t at_ = 0;
};

// The attention output of a decode step over the selection and the segments that the selector adds.
inline std::vector<float> attended_output(Decode& d, Selector& selector) {
  d.append(1);
  LayerStep s = d.step();
  selector.update(s);
  const Selection chosen = selector.select(s);
  std::vector<Segment> segments(1);
  segments[0].kv = s.kv;
  segments[0].index_first = chosen.index_first, segments[0].index = chosen.index;
  selector.add_segments(s, segments);
  const auto width = static_cast<std::size_t>(d.model.q_heads * d.model.head_dim);
  std::vector<float> out(d.k.size() * width);
  std::vector<float*> rows;
  for (std::size_t i = 0; i < d.k.size(); ++i) rows.push_back(out.data() + i * width);
  d.ops(Attend{segments.data(), static_cast<std::int32_t>(segments.size()), d.queries.data(), rows.data()});
  return out;
}

// softmax(z) . rows of v, each of length d.
inline std::vector<double> attend_plain(const std::vector<double>& z, const std::vector<std::vector<double>>& v) {
  const double top = *std::max_element(z.begin(), z.end());
  std::vector<double> out(v.front().size(), 0.0);
  double sum = 0;
  for (const double x : z) sum += std::exp(x - top);
  for (std::size_t i = 0; i < z.size(); ++i)
    for (std::size_t c = 0; c < out.size(); ++c) out[c] += std::exp(z[i] - top) / sum * v[i][c];
  return out;
}

}  // namespace kvlab::test
