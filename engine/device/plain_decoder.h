#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/policy_cache.h"
#include "engine/device/device_transformer.h"
#include "kernels/device/cuda/graph.h"
#include "kernels/paged_kv.h"

namespace kvlab {

// Steps in which sequences decode a token each over a cache of which nothing is cut (Recipe::keeps_everything). Page tables stay in device
// memory and are brought up to date, and all launches of a step are one recorded graph for each size of batch. The kernels of this
// case do without positions, but write them: a later step may be of another kind.
class PlainDecoder {
 public:
  // The model and the cache, which is the model's, outlive this. Without `graphs` kernels are launched one by one.
  PlainDecoder(DeviceTransformer& model, PolicyCache& cache, bool graphs);
  // True: such a cache can be decoded this way.
  static bool can_run(const DeviceTransformer& model, const PolicyCache& cache);
  // The bound of a step's longest row that its kernels are launched for: 256 tokens, or the next power of two.
  static std::int32_t rounded_tokens(std::int32_t tokens);

  struct Token {
    EngineSequence* sequence = nullptr;
    std::int32_t id = 0;    // newest token, to be run now
    float temperature = 0;  // of the draw after it
    std::uint64_t key = 0;
  };
  // Returns the drawn tokens. Errors: an id outside the vocabulary, a cache that cannot grow (InputError); no memory for the step
  // (GpuMemoryError). If only a graph finds no memory, the step's kernels are launched one by one.
  std::vector<std::int32_t> step(std::span<const Token> batch);

  // Records the steps of all sizes up to these numbers of sequences and tokens per sequence; a cache of `cached_tokens` holds at least one
  // of the largest. Sizes whose page tables would take a quarter of the free memory are left to the steps, and so are all others once a
  // graph finds no memory. Nothing is written to the cache.
  void prepare(std::int32_t sequences, std::int32_t tokens, std::int64_t cached_tokens);

  // Launches the last step again, with the same inputs and results, for benchmarks.
  void repeat();

  // Which graph was the first without memory; empty: none was.
  [[nodiscard]] const std::string& remark() const { return remark_; }

 private:
  // Runs appends and attention of a layer from the tables.
  class Attention;
  struct Size {
    std::int32_t batch = 0, longest = 0;  // sequences, tokens of the longest row; rounded up
    auto operator<=>(const Size&) const = default;
  };
  // The content of a slot of the tables.
  struct Slot {
    std::uint64_t pages_id = 0;  // of the sequence whose first `pages` of each row are in the tables
    std::int32_t pages = 0;
  };

  void make_room(std::span<const Token> batch);
  void extend(EngineSequence& sequence);
  void make_tables(std::int32_t batch, std::int32_t pages);
  void update_tables(std::span<const Token> batch);
  void upload_step(std::span<const Token> batch, std::int32_t size);
  void run_step(const Size& size);
  [[nodiscard]] std::int32_t tables_for(std::int32_t batch, std::int32_t tokens) const;
  void launch(const Size& size);
  void record(const Size& size);
  void forget_graphs();
  void forget_stale_graphs();
  [[nodiscard]] std::vector<const void*> places() const;

  DeviceTransformer& model_;
  PolicyCache& cache_;
  CudaContext& cuda_;
  bool graphs_;
  std::int32_t heads_, slots_ = 0, row_pages_ = 0;  // sequences and pages of a row that there is room for
  std::vector<Slot> slot_;
  TensorArray<std::int32_t> page_;                         // [layers, slots, kv_heads, row_pages]
  TensorArray<std::int32_t> page_begin_, len_, counters_;  // [slots * kv_heads]
  TensorArray<float> temperature_;                         // [slots]
  TensorArray<std::uint64_t> key_;                         // [slots]
  TensorArray<std::int32_t> token_;                        // [slots]
  KvRows pool_;
  std::map<Size, CudaGraph> recorded_;
  std::vector<const void*> recorded_places_;
  bool is_full_ = false;  // a graph found no memory: no more are recorded beside those there are
  std::string remark_;
  Size last_;
};

}  // namespace kvlab
