#include "policies/kv/scorer/scorer.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <optional>

#include "base/text.h"
#include "bindings/policies/python_policy.h"

namespace kvlab {

namespace {

namespace scorer_places {
constexpr std::uint8_t kKeys = 0, kValues = 1, kPositions = 2, kQueries = 3, kLayer = 4, kHead = 5, kPromptTokens = 6, kSeenTokens = 7;
}  // namespace scorer_places

// Read-only numpy view for one Python call. Requires the GIL.
class LentArray {
 public:
  template <class T>
  LentArray(const T* data, std::initializer_list<std::size_t> shape, std::initializer_list<std::int64_t> strides = {}) {
    const nb::ndarray<nb::numpy, const T> view(data, shape, nb::handle(), strides);
    array_ = nb::cast(view, nb::rv_policy::reference);
  }
  [[nodiscard]] nb::handle object() const { return array_; }
  // After the call: the policy still refers to the memory.
  [[nodiscard]] bool is_kept() const { return Py_REFCNT(array_.ptr()) > 1; }

 private:
  nb::object array_;
};

// The cache's memory if contiguous, else a copy.
struct RowMatrices {
  const float *keys = nullptr, *values = nullptr;  // [tokens, head_dim]
  const std::int32_t* positions = nullptr;         // [tokens]
};

class RowReader {
 public:
  // Valid until the next call.
  RowMatrices read(const KvRows& kv, std::int32_t row) {
    if (kv.len[row] == 0) return {};
    const KvRun first = run_at(kv, row, 0);
    const std::int64_t at = first.slot * kv.head_dim;
    if (first.count == kv.len[row]) return {kv.k + at, kv.v + at, kv.position + first.slot};
    keys_.clear(), values_.clear(), positions_.clear();
    for_each_run(kv, row, [&](const KvRun& run) {
      const std::int64_t begin = run.slot * kv.head_dim, end = begin + std::int64_t{run.count} * kv.head_dim;
      keys_.insert(keys_.end(), kv.k + begin, kv.k + end);
      values_.insert(values_.end(), kv.v + begin, kv.v + end);
      positions_.insert(positions_.end(), kv.position + run.slot, kv.position + run.slot + run.count);
    });
    return {keys_.data(), values_.data(), positions_.data()};
  }

 private:
  std::vector<float> keys_, values_;
  std::vector<std::int32_t> positions_;
};

// Row by row, without measured cost; shape-only runs charge another scorer's operations if the policy names one.
class PythonScorer final : public Scorer {
 public:
  PythonScorer(const PolicyPtr& policy, const PythonValues& values) : python_(policy, values), score_(*python_.method("score")) {
    std::string cost;
    policy->call([&] {
      cost = policy->option<std::string>("cost");
      window_queries_ = policy->option<std::int32_t>("window_queries");
      protected_ = {policy->option<std::int32_t>("sinks_tokens"), policy->option<std::int32_t>("recent_tokens")};
      comparable_ = policy->option<bool>("compare_heads");
    });
    if (!cost.empty()) set_cost(cost);
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    if (charged_) needs = charged_->needs();
    needs.window_queries = std::max(needs.window_queries, window_queries_);
    needs.run_only_on_cpu("has a scorer in Python");
    return needs;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return charged_ ? charged_->refuses(model) : ""; }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return charged_ ? charged_->layer_kind(layer) : 0; }
  void step_key(const SeqStep& seq, StepKey& key) const override {
    if (charged_) charged_->step_key(seq, key);
  }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override {
    return charged_ ? charged_->affine_lengths(len) : Lengths::all();
  }
  [[nodiscard]] bool cuts_affinely() const override { return charged_ && charged_->cuts_affinely(); }
  [[nodiscard]] Protected protects() const override { return protected_; }
  [[nodiscard]] bool comparable_across_heads() const override { return comparable_; }
  void forget(std::int32_t index) override {
    if (charged_) charged_->forget(index);
  }
  void set_budget(const Budget& budget) override {
    if (charged_) charged_->set_budget(budget);
  }

  void observe(LayerStep& step) override {
    if (charged_ && !step.ops.computes()) charged_->observe(step);
  }
  void score(LayerStep& step, float* scores) override {
    if (!step.ops.computes()) return charge(step);
    python_.policy().call([&] {
      for (std::int32_t row = 0; row < step.kv.num_rows; ++row) score_row(step, row, scores + step.kv.first[row]);
    });
  }

 private:
  void set_cost(const std::string& cost) {
    if (!ScorerRegistry::table_view().contains(cost))
      python_.policy().fail(fmt::format("cost=\"{}\" is not a scorer{}", cost, suggestion(cost, ScorerRegistry::names())));
    Params none = Params::empty("cost");
    charged_ = ScorerRegistry::make(cost, none, "scorer");
    if (dynamic_cast<PythonScorer*>(charged_.get()) != nullptr)
      python_.policy().fail(fmt::format("cost=\"{}\" is a scorer in Python, which has no measured cost", cost));
    if (charged_->num_words() > 0 || charged_->ranks_after_counts())
      python_.policy().fail(fmt::format(
          "cost=\"{}\" cannot be charged: it {}, which a scorer in Python does not do", cost,
          charged_->num_words() > 0 ? "keeps statistics with each token" : "ranks tokens again once the numbers to keep are known"));
  }

  void charge(LayerStep& step) const {
    if (!charged_)
      python_.policy().fail(
          "a scorer in Python has no measured cost, so it runs in replay alone; to simulate serving, name a scorer whose operations it is "
          "charged with: cost=\"key_norm\"");
    charged_->score(step, nullptr);
  }

  void score_row(const LayerStep& step, std::int32_t row, float* scores) {
    const KvRows& kv = step.kv;
    const auto tokens = static_cast<std::size_t>(kv.len[row]), dim = static_cast<std::size_t>(kv.head_dim);
    if (tokens == 0) return;
    const RowMatrices its = reader_.read(kv, row);
    const SeqStep& seq = step.seqs[static_cast<std::size_t>(kv.sequence(row))];
    std::array<std::optional<LentArray>, 4> arrays;
    const auto lend = [&](std::uint8_t place, const auto* data, std::initializer_list<std::size_t> shape) {
      if (score_.takes(place)) arrays[place].emplace(data, shape);
    };
    lend(scorer_places::kKeys, its.keys, {tokens, dim});
    lend(scorer_places::kValues, its.values, {tokens, dim});
    lend(scorer_places::kPositions, its.positions, {tokens});
    if (score_.takes(scorer_places::kQueries)) lend_queries(step, row, arrays[scorer_places::kQueries]);
    std::array<nb::object, 4> numbers{nb::cast(step.layer), nb::cast(row % kv.kv_heads), nb::cast(seq.prompt_tokens), nb::cast(seq.end())};
    std::array<PyObject*, PythonMethod::kMostArguments> arguments{};
    for (std::size_t i = 0; i < arrays.size(); ++i) arguments[i] = arrays[i] ? arrays[i]->object().ptr() : nullptr;
    for (std::size_t i = 0; i < numbers.size(); ++i) arguments[arrays.size() + i] = numbers[i].ptr();
    copy_scores(score_.call(arguments), tokens, scores);
    for (const auto& array : arrays)
      if (array && array->is_kept())
        python_.policy().fail("score() keeps an array after the call, when its memory is used for something else: store array.copy()");
  }

  // The prompt's last queries: [queries, group, head_dim].
  void lend_queries(const LayerStep& step, std::int32_t row, std::optional<LentArray>& array) const {
    const KvRows& kv = step.kv;
    const Queries& window = step.in.window[static_cast<std::size_t>(kv.sequence(row))];
    const std::int32_t count = std::min(window.count, window_queries_);
    const std::int64_t line = std::int64_t{kv.kv_heads} * kv.group * kv.head_dim;
    const float* const first = window.data + (window.count - count) * line + std::int64_t{row % kv.kv_heads} * kv.group * kv.head_dim;
    const auto size = [](std::int32_t n) { return static_cast<std::size_t>(n); };
    array.emplace(first, std::initializer_list<std::size_t>{size(count), size(kv.group), size(kv.head_dim)},
                  std::initializer_list<std::int64_t>{line, kv.head_dim, 1});
  }

  void copy_scores(const nb::object& returned, std::size_t tokens, float* scores) const {
    using Scores = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    Scores given;
    const bool is_array = nb::try_cast(returned, given);
    if (!is_array) PyErr_Clear();
    if (!is_array || given.shape(0) != tokens)
      python_.policy().fail(fmt::format("score() must return a NumPy array of {} real numbers, one for each token, and returned {}", tokens,
                                        described(returned)));
    for (std::size_t i = 0; i < tokens; ++i) {
      scores[i] = given.data()[i];
      if (std::isnan(scores[i])) python_.policy().fail(fmt::format("score() returned NaN for token {} of the row", i));
    }
  }

  static std::string described(const nb::object& returned) {
    const std::string type = nb::str(nb::handle(returned.type()).attr("__name__")).c_str();
    if (!nb::hasattr(returned, "shape") || !nb::hasattr(returned, "dtype")) return type;
    const nb::object dtype = returned.attr("dtype"), shape = returned.attr("shape");
    return fmt::format("{} of {} with shape {}", type, nb::str(nb::handle(dtype)).c_str(), nb::repr(shape).c_str());
  }

  PythonInstance python_;
  const PythonMethod& score_;
  std::unique_ptr<Scorer> charged_;  // null: no cost
  std::int32_t window_queries_ = 0;
  Protected protected_;
  bool comparable_ = false;
  RowReader reader_;
};

}  // namespace

void add_scorer(const PolicyPtr& policy) { add_to_registry<Scorer, PythonScorer>(policy); }

}  // namespace kvlab
