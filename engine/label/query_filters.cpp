#include "engine/label/query_filters.h"

#include <Eigen/Dense>

#include "base/error.h"
#include "engine/model/plain_cache.h"
#include "traces/write_safetensors.h"

namespace kvlab {

namespace {

// Sums over queries, per layer and KV head: of q and of q q^T.
class QuerySums final : public Recorder {
 public:
  explicit QuerySums(const ModelConfig& config)
      : config_(config),
        sum_(static_cast<std::size_t>(config.layers) * static_cast<std::size_t>(config.kv_heads), Eigen::VectorXd::Zero(config.head_dim)),
        square_(sum_.size(), Eigen::MatrixXd::Zero(config.head_dim, config.head_dim)) {}

  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float>, std::span<const float>,
                    std::span<const float>) override {
    const std::int64_t width = std::int64_t{config_.q_heads} * config_.head_dim, tokens = std::ssize(q) / width;
    using Rows = Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
    const Rows rows(q.data(), tokens, width);
    for (std::int32_t h = 0; h < config_.q_heads; ++h) {
      const Eigen::MatrixXd own = rows.middleCols(std::int64_t{h} * config_.head_dim, config_.head_dim).cast<double>();
      const auto at = static_cast<std::size_t>(layer * config_.kv_heads + h / (config_.q_heads / config_.kv_heads));
      sum_[at] += own.colwise().sum().transpose();
      square_[at].noalias() += own.transpose() * own;
    }
  }

  // -u of each.
  [[nodiscard]] std::vector<float> filters() const {
    std::vector<float> all;
    for (std::size_t i = 0; i < sum_.size(); ++i) {
      const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(square_[i]);
      Eigen::VectorXd u = solver.eigenvectors().col(config_.head_dim - 1);  // eigenvalues ascend
      if (u.dot(sum_[i]) < 0) u = -u;
      for (const double x : u) all.push_back(static_cast<float>(-x));
    }
    return all;
  }

 private:
  const ModelConfig& config_;
  std::vector<Eigen::VectorXd> sum_;
  std::vector<Eigen::MatrixXd> square_;
};

}  // namespace

std::vector<float> query_filters(const Transformer& model, std::span<const std::vector<std::int32_t>> texts) {
  QuerySums sums(model.config());
  bool is_empty = true;
  for (const std::vector<std::int32_t>& ids : texts) {
    if (ids.empty()) continue;
    is_empty = false;
    KvState kv(model.config());
    forward(model, ids, kv, &sums);
  }
  if (is_empty) throw InputError("the calibration text has no token");
  return sums.filters();
}

void write_query_filters(const std::string& path, const ModelConfig& model, std::int64_t tokens, const std::vector<float>& filters) {
  write_safetensors(path, {{"q_filters", "F32", {model.layers, model.kv_heads, model.head_dim}, filters.data()}},
                    {{"model", model.name}, {"calibration_tokens", std::to_string(tokens)}});
}

}  // namespace kvlab
