#include "policies/kv/allocator/head_labels.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace kvlab {

std::vector<std::int32_t> largest(std::span<const float> values, std::size_t count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(count, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

HeadLabels::HeadLabels(std::shared_ptr<const TrainedTensors> weights, HeadLabel label, double frac, double echo_frac)
    : weights_(std::move(weights)), label_(label) {
  const std::vector<std::int64_t> shape = weights_->shape(tensor());
  if (shape.size() != 2) throw InputError(fmt::format("{}: tensor '{}' is no table [layers, KV heads]", weights_->name(), tensor()));
  const double rows = static_cast<double>(shape[0] * shape[1]);
  const auto count = static_cast<std::size_t>(std::lround(frac * rows));
  std::vector<float> ranks;
  for (const float x : weights_->floats(tensor())) ranks.push_back(x);
  if (label_ == HeadLabel::kInduction) {
    if (weights_->shape("kv_echo") != shape)
      throw InputError(weights_->name() + ": tensors 'kv_induction' and 'kv_echo' have different shapes");
    const auto echoes = std::min(count, static_cast<std::size_t>(std::lround(echo_frac * rows)));
    for (const std::int32_t row : largest(weights_->floats("kv_echo"), echoes))
      ranks[static_cast<std::size_t>(row)] = std::numeric_limits<float>::infinity();
  }
  for (const std::int32_t row : largest(ranks, count))
    heads_.push_back({row / static_cast<std::int32_t>(shape[1]), row % static_cast<std::int32_t>(shape[1]), 0});
}

std::string HeadLabels::refuses(const ModelShape& model) const {
  return weights_->refuses(tensor(), {model.num_layers, model.kv_heads}, "layers, KV heads");
}

}  // namespace kvlab
