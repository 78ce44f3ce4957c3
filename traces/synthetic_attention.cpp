#include "traces/synthetic_attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/random.h"

namespace kvlab {

namespace {

// Before rotation: sink, needle, heavy, four of the beat, two per wave; then noise.
constexpr std::size_t kSinkChannel = 0, kNeedleChannel = 1, kHeavyChannel = 2, kBeatChannel = 3, kWaveChannel = 7;
constexpr std::size_t kBeatChannels = kWaveChannel - kBeatChannel;

// Keys with attention are short (Devoto et al. 2024).
constexpr double kRoleNoise = 0.5;
constexpr float kSinkValueScale = 0.05F;  // near zero (Guo et al. 2024, "Attention score is not all you need")
constexpr float kOutlierSpread = 0.1F;    // relative to channel size
constexpr std::size_t kFewestWaves = 8;   // fewer make far tokens in phase look near
constexpr double kMostStrength = 30;
constexpr double kBeatStep = 0.1;  // in log_beat_mean_

enum AttentionDraw : std::uint64_t { kKeys, kValues, kQueries, kRoles, kRetrieval, kNeedlePlace, kOutlierPlace, kRotation };

Draw draw_of(std::uint64_t seed, std::int32_t layer, std::int32_t head, AttentionDraw what) {
  return {seed, Purpose::kAttention, static_cast<std::uint64_t>(layer), static_cast<std::uint64_t>(head), what};
}

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

// Walsh-Hadamard, length-preserving, for powers of two.
void hadamard(std::span<float> x) {
  for (std::size_t half = 1; half < x.size(); half *= 2) {
    for (std::size_t begin = 0; begin < x.size(); begin += 2 * half) {
      for (std::size_t i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(x.size()));
  for (float& v : x) v *= scale;
}

}  // namespace

// Orthogonal, so no feature is one channel: a permutation, then signs and Hadamard transforms of the first and last 2^m channels.
class SyntheticAttention::Rotation {
 public:
  Rotation(std::size_t channels, std::uint64_t seed) : order_(channels), signs_(2 * channels), block_(std::bit_floor(channels)) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    for (std::size_t i = channels; i > 1; --i) std::swap(order_[i - 1], order_[Draw{seed, Purpose::kAttention, i, 0}.below(i)]);
    for (std::size_t i = 0; i < signs_.size(); ++i) signs_[i] = (Draw{seed, Purpose::kAttention, i, 1}.bits() & 1) != 0 ? 1.0F : -1.0F;
  }

  void operator()(std::span<const float> from, std::span<float> to) const {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[order_[i]] * signs_[i];
    hadamard(to.first(block_));
    for (std::size_t i = to.size() - block_; i < to.size(); ++i) to[i] *= signs_[to.size() + i];
    hadamard(to.last(block_));
  }

 private:
  std::vector<std::size_t> order_;
  std::vector<float> signs_;
  std::size_t block_;
};

struct SyntheticAttention::Strengths {
  double sink = 0, needle = 0, heavy = 0, beat = 0, near = 0;
};

class SyntheticAttention::Head {
 public:
  Head(const SyntheticAttention& all, std::int32_t layer, std::int32_t kv_head, const Recency& recency)
      : all_(all),
        shape_(all.shape_),
        layer_(layer),
        kv_head_(kv_head),
        head_dim_(index(shape_.head_dim)),
        inner_(head_dim_ - index(shape_.outlier_channels)),
        roles_(all.roles(layer, kv_head)),
        rotation_(inner_, draw_of(all.seed_, layer, kv_head, kRotation).bits()) {
    strengths_ = strengths(recency);
    place_outliers();
  }

  void write_keys(std::vector<float>& k) const {
    const NormalStream stream(draw_of(all_.seed_, layer_, kv_head_, kKeys));
    std::vector<float> normals(head_dim_), features(inner_), rotated(inner_);
    for (std::size_t t = 0; t < roles_.size(); ++t) {
      stream.fill(t * head_dim_, normals);
      const bool is_ordinary = roles_[t] == TokenRole::kOrdinary;
      const float noise = static_cast<float>(is_ordinary ? 1.0 : kRoleNoise);
      for (std::size_t c = 0; c < inner_; ++c) features[c] = c < first_noise() ? 0.0F : noise * normals[c];
      mark(t, features);
      rotation_(features, rotated);
      const auto scale = static_cast<float>(shape_.outlier_scale);
      for (std::size_t c = inner_; c < head_dim_; ++c) normals[c] = (c % 2 != 0 ? scale : -scale) * (1.0F + kOutlierSpread * normals[c]);
      scatter(rotated, normals, std::span(k).subspan((t * index(shape_.kv_heads) + index(kv_head_)) * head_dim_, head_dim_));
    }
  }

  void write_values(std::vector<float>& v) const {
    const NormalStream stream(draw_of(all_.seed_, layer_, kv_head_, kValues));
    for (std::size_t t = 0; t < roles_.size(); ++t) {
      const std::span<float> to = std::span(v).subspan((t * index(shape_.kv_heads) + index(kv_head_)) * head_dim_, head_dim_);
      stream.fill(t * head_dim_, to);
      if (roles_[t] != TokenRole::kSink) continue;
      for (float& value : to) value *= kSinkValueScale;
    }
  }

  void write_queries(std::int32_t q_head, std::vector<float>& q) const {
    const NormalStream stream(draw_of(all_.seed_, layer_, q_head, kQueries));
    const double root = std::sqrt(static_cast<double>(head_dim_));
    const auto noise = static_cast<float>(all_.noise(layer_) * root / std::sqrt(static_cast<double>(inner_ - first_noise())));
    std::vector<float> normals(head_dim_), features(inner_), rotated(inner_);
    for (std::size_t t = 0; t < roles_.size(); ++t) {
      stream.fill(t * head_dim_, normals);
      for (std::size_t c = first_noise(); c < inner_; ++c) features[c] = noise * normals[c];
      look(t, features);
      rotation_(features, rotated);
      for (std::size_t c = inner_; c < head_dim_; ++c) normals[c] *= kOutlierSpread;
      scatter(rotated, normals, std::span(q).subspan((t * index(shape_.q_heads) + index(q_head)) * head_dim_, head_dim_));
    }
  }

 private:
  [[nodiscard]] std::size_t first_noise() const { return kWaveChannel + 2 * all_.num_waves_; }
  [[nodiscard]] std::size_t phase(std::size_t t) const { return t % index(shape_.recurrence_period_tokens) * kBeatChannels; }
  // A query of strength A has 2 A in its role's channel, so that q.k / sqrt(d) = A.
  [[nodiscard]] float mark_size() const { return 0.5F * std::sqrt(static_cast<float>(head_dim_)); }

  void mark(std::size_t t, std::span<float> key) const {
    const float size = mark_size();
    switch (roles_[t]) {
      case TokenRole::kOrdinary:
        std::copy_n(all_.waves_.begin() + static_cast<std::ptrdiff_t>(t * 2 * all_.num_waves_), 2 * all_.num_waves_, &key[kWaveChannel]);
        break;
      case TokenRole::kSink:
        key[kSinkChannel] = size;
        break;
      case TokenRole::kNeedle:
        key[kNeedleChannel] = size;
        break;
      case TokenRole::kHeavy:
        key[kHeavyChannel] = size;
        break;
      case TokenRole::kRecurring:  // half the phase, half its double
        for (std::size_t c = 0; c < kBeatChannels; ++c) key[kBeatChannel + c] = 0.5F * size * all_.beat_[phase(t) + c];
        break;
    }
  }

  void look(std::size_t t, std::span<float> query) const {
    const Strengths& s = strengths_[t];
    query[kSinkChannel] = static_cast<float>(2 * s.sink);
    query[kNeedleChannel] = static_cast<float>(2 * s.needle);
    query[kHeavyChannel] = static_cast<float>(2 * s.heavy);
    for (std::size_t c = 0; c < kBeatChannels; ++c) query[kBeatChannel + c] = static_cast<float>(2 * s.beat) * all_.beat_[phase(t) + c];
    const auto wave = static_cast<float>(s.near * std::sqrt(static_cast<double>(head_dim_)) / static_cast<double>(all_.num_waves_));
    for (std::size_t c = 0; c < 2 * all_.num_waves_; ++c) query[kWaveChannel + c] = wave * all_.waves_[t * 2 * all_.num_waves_ + c];
  }

  void scatter(std::span<const float> rotated, std::span<const float> outliers, std::span<float> to) const {
    std::size_t next_inner = 0, next_outlier = inner_;
    for (std::size_t c = 0; c < to.size(); ++c) to[c] = is_outlier_[c] ? outliers[next_outlier++] : rotated[next_inner++];
  }

  void place_outliers() {
    is_outlier_.assign(head_dim_, false);
    const Draw place = draw_of(all_.seed_, layer_, kv_head_, kOutlierPlace);
    const std::size_t begin = place.below(head_dim_), count = head_dim_ - inner_;
    for (std::size_t i = 0; i < count; ++i) is_outlier_[(begin + i * (head_dim_ / count)) % head_dim_] = true;
  }

  // Per position: scores that give each role its share of the softmax sum.
  [[nodiscard]] std::vector<Strengths> strengths(const Recency& recency) const {
    const std::array<double, 5> shares{0, all_.share(shape_.sink, layer_), all_.share(shape_.needle, layer_),
                                       all_.share(shape_.heavy, layer_), all_.share(shape_.recurring, layer_)};
    const double noise = kRoleNoise * all_.noise(layer_);
    const bool retrieves = all_.retrieves(layer_, kv_head_);
    std::array<std::int32_t, 5> seen{};
    std::vector<Strengths> result(roles_.size());
    for (std::size_t t = 0; t < roles_.size(); ++t) {
      ++seen[static_cast<std::size_t>(roles_[t])];
      const bool looks_for_needles = retrieves && t >= index(all_.question_begin());
      const std::size_t ordinary = index(std::max(1, seen[0]) - 1);
      std::array<double, 5> wanted{};
      double pool = 1;
      for (std::size_t r = 1; r < wanted.size(); ++r) {
        const bool is_wanted = seen[r] > 0 && (static_cast<TokenRole>(r) != TokenRole::kNeedle || looks_for_needles);
        wanted[r] = is_wanted ? shares[r] : 0;
        pool -= wanted[r];
      }
      const auto score = [&](TokenRole role) {  // without noise
        const auto r = static_cast<std::size_t>(role);
        if (wanted[r] <= 0) return 0.0;
        return std::log(wanted[r] / pool) + recency.log_sum[ordinary] - std::log(static_cast<double>(seen[r])) - 0.5 * noise * noise;
      };
      result[t] = {score(TokenRole::kSink), score(TokenRole::kNeedle), score(TokenRole::kHeavy),
                   beat_strength(score(TokenRole::kRecurring)), recency.strength[ordinary]};
    }
    return result;
  }

  // Its mean over a period is exp(log_mean).
  [[nodiscard]] double beat_strength(double log_mean) const {
    const std::vector<double>& table = all_.log_beat_mean_;
    const auto above = std::lower_bound(table.begin(), table.end(), log_mean);
    if (above == table.begin()) return 0;
    return kBeatStep * static_cast<double>(std::min(above, table.end() - 1) - table.begin());
  }

  const SyntheticAttention& all_;
  const SyntheticAttentionShape& shape_;
  std::int32_t layer_, kv_head_;
  std::size_t head_dim_, inner_;  // non-outlier channels
  std::vector<TokenRole> roles_;
  Rotation rotation_;
  std::vector<Strengths> strengths_;  // [num_tokens]
  std::vector<bool> is_outlier_;      // [head_dim]
};

SyntheticAttention::SyntheticAttention(const SyntheticAttentionShape& shape, std::uint64_t seed)
    : shape_(shape), seed_(seed), num_waves_(std::max(kFewestWaves, index(shape.head_dim / 8))) {
  if (const std::string problem = problem_of(shape); !problem.empty()) throw InternalError(problem);
  place_needles();
  tabulate_waves();
  tabulate_beat();
}

double SyntheticAttention::between(double first, double last, std::int32_t layer) const {
  return shape_.layers == 1 ? last : first + (last - first) * layer / (shape_.layers - 1);
}

// One per equal part between sinks and question.
void SyntheticAttention::place_needles() {
  const std::int64_t body = question_begin() - shape_.sink_tokens;
  for (std::int32_t n = 0; n < shape_.needles; ++n) {
    const std::int64_t begin = body * n / shape_.needles, end = body * (n + 1) / shape_.needles;
    const Draw place = draw_of(seed_, 0, n, kNeedlePlace);
    const auto offset = static_cast<std::int64_t>(place.below(static_cast<std::uint64_t>(end - begin - shape_.needle_tokens + 1)));
    const auto at = static_cast<std::int32_t>(shape_.sink_tokens + begin + offset);
    needles_.emplace_back(at, at + shape_.needle_tokens);
  }
}

// Geometric, 1 to 1 / num_tokens: the sum of cosines falls like the logarithm of distance.
void SyntheticAttention::tabulate_waves() {
  const std::size_t tokens = index(num_tokens());
  waves_.resize(tokens * num_waves_ * 2);
  nearness_.assign(tokens, 0);
  for (std::size_t w = 0; w < num_waves_; ++w) {
    const double frequency = std::pow(static_cast<double>(tokens), -static_cast<double>(w) / static_cast<double>(num_waves_ - 1));
    for (std::size_t t = 0; t < tokens; ++t) {
      const double angle = frequency * static_cast<double>(t);
      waves_[(t * num_waves_ + w) * 2] = static_cast<float>(std::cos(angle));
      waves_[(t * num_waves_ + w) * 2 + 1] = static_cast<float>(std::sin(angle));
      nearness_[t] += std::cos(angle) / static_cast<double>(num_waves_);
    }
  }
}

void SyntheticAttention::tabulate_beat() {
  const std::size_t period = index(shape_.recurrence_period_tokens);
  constexpr double kTwoPi = 6.283185307179586476925;
  for (std::size_t t = 0; t < period; ++t) {
    const double angle = kTwoPi * static_cast<double>(t) / static_cast<double>(period);
    for (const double a : {angle, 2 * angle}) {
      beat_.push_back(static_cast<float>(std::cos(a)));
      beat_.push_back(static_cast<float>(std::sin(a)));
    }
  }
  for (double strength = 0; strength <= kMostStrength; strength += kBeatStep) {
    double sum = 0;
    for (std::size_t t = 0; t < period; ++t) {
      sum += std::exp(strength * 0.5 * static_cast<double>(beat_[t * kBeatChannels] + beat_[t * kBeatChannels + 2]));
    }
    log_beat_mean_.push_back(std::log(sum / static_cast<double>(period)));
  }
}

double SyntheticAttention::sum_by_distance(double strength, std::int32_t begin, std::int32_t end) const {
  double sum = 0;
  for (std::int32_t distance = begin; distance < end; ++distance) sum += std::exp(strength * nearness_[index(distance)]);
  return sum;
}

// Bisects: the nearest recent_tokens get `share` of the attention.
double SyntheticAttention::recency_strength(double share, std::int32_t tokens) const {
  const std::int32_t recent = shape_.recent_tokens;
  if (tokens <= recent) return 0;
  double low = 0, high = kMostStrength;
  for (int step = 0; step < 24; ++step) {
    const double middle = 0.5 * (low + high);
    const double near = sum_by_distance(middle, 0, recent), far = sum_by_distance(middle, recent, tokens);
    (near < share * (near + far) ? low : high) = middle;
  }
  return low;
}

// Exact at a few lengths, linear in log length between. Constant up to twice recent_tokens, where the share says little.
SyntheticAttention::Recency SyntheticAttention::recency(std::int32_t layer) const {
  const std::int32_t tokens = num_tokens();
  const double pool = 1 - share(shape_.sink, layer) - share(shape_.heavy, layer) - share(shape_.recurring, layer);
  const double wanted = share(shape_.recent, layer) / pool;
  const double noise_term = 0.5 * noise(layer) * noise(layer);  // log of the mean exponential of a normal
  Recency r;
  std::int32_t before = 0;
  double strength_before = 0, log_before = 0;
  for (std::int32_t n = 1; before < tokens; n = std::min(tokens, n + n / 4 + 1)) {
    const std::int32_t solved_for = std::max(n, static_cast<std::int32_t>(std::min<std::int64_t>(2LL * shape_.recent_tokens, tokens)));
    const double strength = recency_strength(wanted, solved_for);
    const double log_sum = std::log(sum_by_distance(strength, 0, n)) + noise_term;
    for (std::int32_t i = before + 1; i <= n; ++i) {
      const double part = before == 0 ? 1 : std::log(static_cast<double>(i) / before) / std::log(static_cast<double>(n) / before);
      r.strength.push_back(strength_before + part * (strength - strength_before));
      r.log_sum.push_back(log_before + part * (log_sum - log_before));
    }
    before = n, strength_before = strength, log_before = log_sum;
  }
  return r;
}

bool SyntheticAttention::retrieves(std::int32_t layer, std::int32_t kv_head) const {
  return draw_of(seed_, layer, kv_head, kRetrieval).uniform() < shape_.retrieval_heads_frac;
}

std::vector<TokenRole> SyntheticAttention::roles(std::int32_t layer, std::int32_t kv_head) const {
  std::vector<TokenRole> roles(index(num_tokens()), TokenRole::kOrdinary);
  const std::uint64_t key = draw_of(seed_, layer, kv_head, kRoles).bits();
  for (std::size_t t = 0; t < roles.size(); ++t) {
    const double u = Draw{key, Purpose::kAttention, t}.uniform();
    if (u < shape_.heavy_tokens_frac + shape_.recurring_tokens_frac) roles[t] = TokenRole::kRecurring;
    if (u < shape_.heavy_tokens_frac) roles[t] = TokenRole::kHeavy;
  }
  for (const auto& [begin, end] : needles_) std::fill(roles.begin() + begin, roles.begin() + end, TokenRole::kNeedle);
  std::fill_n(roles.begin(), std::min(shape_.sink_tokens, num_tokens()), TokenRole::kSink);
  return roles;
}

AttentionTrace SyntheticAttention::outline() const {
  AttentionTrace trace;
  trace.name = trace.model = "synthetic";
  trace.task = shape_.needles > 0 ? "needles" : "";
  trace.num_layers = shape_.layers;
  trace.q_heads = shape_.q_heads;
  trace.kv_heads = shape_.kv_heads;
  trace.head_dim = shape_.head_dim;
  trace.num_tokens = num_tokens();
  trace.prompt_tokens = shape_.prompt_tokens;
  const std::int64_t chunk = shape_.chunk_tokens == 0 ? shape_.prompt_tokens : shape_.chunk_tokens;
  for (std::int64_t end = chunk; end < shape_.prompt_tokens; end += chunk) trace.chunk_ends.push_back(static_cast<std::int32_t>(end));
  trace.chunk_ends.push_back(shape_.prompt_tokens);
  trace.needles = needles_;
  if (shape_.question_tokens > 0) trace.question_begin = question_begin();
  return trace;
}

LayerTensors SyntheticAttention::layer(std::int32_t layer) const {
  const std::size_t row = index(num_tokens()) * index(shape_.head_dim);
  LayerTensors tensors;
  tensors.q.resize(row * index(shape_.q_heads));
  tensors.k.resize(row * index(shape_.kv_heads));
  tensors.v.resize(row * index(shape_.kv_heads));
  const Recency near = recency(layer);
  const std::int32_t group = shape_.q_heads / shape_.kv_heads;
  for (std::int32_t h = 0; h < shape_.kv_heads; ++h) {
    const Head head(*this, layer, h, near);
    head.write_keys(tensors.k);
    head.write_values(tensors.v);
    for (std::int32_t g = 0; g < group; ++g) head.write_queries(h * group + g, tensors.q);
  }
  return tensors;
}

AttentionTrace SyntheticAttention::trace() const {
  AttentionTrace trace = outline();
  for (std::int32_t l = 0; l < shape_.layers; ++l) trace.layers.push_back(layer(l));
  return trace;
}

}  // namespace kvlab
