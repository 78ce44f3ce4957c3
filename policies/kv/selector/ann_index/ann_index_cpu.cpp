#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "kernels/lanes_cpu.h"
#include "policies/kv/selector/ann_index/ann_index.h"

// hnswlib's own distances sum in a machine-dependent order. Included last: it needs the headers above.
#define NO_MANUAL_VECTORIZATION
#include <hnswlib/hnswlib.h>

namespace kvlab {

struct AnnIndex::Graph {
  static constexpr std::size_t kSeed = 100;
  // Minus the product as the distance; counts calls.
  class CountedProducts final : public hnswlib::SpaceInterface<float> {
   public:
    explicit CountedProducts(std::int32_t head_dim) : asked_{head_dim, 0} {}
    std::size_t get_data_size() override { return static_cast<std::size_t>(asked_.head_dim) * sizeof(float); }
    hnswlib::DISTFUNC<float> get_dist_func() override {
      return [](const void* a, const void* b, const void* asked) {
        auto* counter = static_cast<Asked*>(const_cast<void*>(asked));
        ++counter->times;
        return -lane_dot(static_cast<const float*>(a), static_cast<const float*>(b), counter->head_dim);
      };
    }
    void* get_dist_func_param() override { return &asked_; }
    std::int64_t take_count() { return std::exchange(asked_.times, 0); }

   private:
    struct Asked {
      std::int32_t head_dim;
      std::int64_t times;
    };
    Asked asked_;
  };

  Graph(std::int32_t head_dim, Sizes sizes)
      : space(head_dim),
        nodes(&space, 256, static_cast<std::size_t>(sizes.links), static_cast<std::size_t>(sizes.build_candidates), kSeed) {}
  CountedProducts space;
  hnswlib::HierarchicalNSW<float> nodes;
};

AnnIndex::AnnIndex(std::int32_t head_dim, Sizes sizes) : graph_(std::make_unique<Graph>(head_dim, sizes)) {}
AnnIndex::~AnnIndex() = default;

void AnnIndex::add(std::int32_t token, const float* key) {
  auto& nodes = graph_->nodes;
  if (nodes.cur_element_count == nodes.max_elements_) nodes.resizeIndex(2 * nodes.max_elements_);
  nodes.addPoint(key, static_cast<hnswlib::labeltype>(token));
}

std::pair<std::vector<std::int32_t>, std::int64_t> AnnIndex::search(const float* query, std::int32_t count, std::int32_t candidates) const {
  graph_->space.take_count();
  graph_->nodes.setEf(static_cast<std::size_t>(std::max(count, candidates)));
  auto best = graph_->nodes.searchKnn(query, static_cast<std::size_t>(count));
  std::vector<std::int32_t> tokens;
  for (; !best.empty(); best.pop()) tokens.push_back(static_cast<std::int32_t>(best.top().second));
  std::sort(tokens.begin(), tokens.end());
  return {tokens, graph_->space.take_count()};
}

void run_cpu(const AnnAdd& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    std::unique_ptr<AnnIndex>& index = *a.index[r];
    if (a.fresh[r] == 1 || index == nullptr) index = std::make_unique<AnnIndex>(a.kv.head_dim, a.sizes);
    for (std::int32_t i = a.from[r]; i < a.to[r]; ++i) index->add(i, a.kv.key(r, i));
  }
}

void run_cpu(const AnnSearch& a) {
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const Queries& q = a.queries[a.kv.sequence(r)];
    std::int64_t visits = 0;
    for (std::int32_t h = 0; h < a.kv.group; ++h) {
      const std::int64_t list = static_cast<std::int64_t>(r) * a.kv.group + h;
      a.count[list] = 0;
      if (a.keep[r] == 0) continue;
      const float* query = q.data + ((static_cast<std::int64_t>(q.count - 1) * a.kv.kv_heads + r % a.kv.kv_heads) * a.kv.group + h) * d;
      const auto [tokens, looked_at] = (*a.index[r])->search(query, a.keep[r], a.candidates);
      a.count[list] = static_cast<std::int32_t>(tokens.size());
      std::copy(tokens.begin(), tokens.end(), a.found + a.index_first[list]);
      visits += looked_at;
    }
    a.visits[r] = static_cast<std::int32_t>(std::min<std::int64_t>(visits, a.visits[r]));
  }
}

}  // namespace kvlab
