#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/policy_cache.h"
#include "engine/device/device_transformer.h"
#include "kernels/device/cuda/events.h"
#include "kernels/paged_kv.h"

namespace kvlab {

// Decode steps over an uncut cache (Recipe::keeps_everything): page tables in device memory, a graph per batch size. Writes positions, does
// not read them.
class PlainDecoder {
 public:
  // Model and cache outlive this. `graphs` false: single kernels.
  PlainDecoder(DeviceTransformer& model, PolicyCache& cache, bool graphs);
  static bool can_run(const DeviceTransformer& model, const PolicyCache& cache);
  // Launch bound of the longest row: a power of two, at least 256.
  static std::int32_t rounded_tokens(std::int32_t tokens);

  struct Token {
    EngineSequence* sequence = nullptr;
    std::int32_t id = 0;    // run by this step
    float temperature = 0;  // for the next token
    std::uint64_t key = 0;
  };
  // Throws InputError for an invalid id or a cache that cannot grow, GpuMemoryError without memory for the step.
  std::vector<std::int32_t> step(std::span<const Token> batch);

  // Records steps up to these sequences and tokens per sequence, within `cached_tokens`. Stops at page tables of a quarter of the free
  // memory, or without memory. Does not write the cache.
  void prepare(std::int32_t sequences, std::int32_t tokens, std::int64_t cached_tokens);

  // For benchmarks.
  void repeat();

  // The first graph without memory; may be empty.
  [[nodiscard]] const std::string& remark() const { return remark_; }

 private:
  class Attention;
  struct Size {
    std::int32_t batch = 0, longest = 0;  // sequences, tokens of the longest; rounded up
    auto operator<=>(const Size&) const = default;
  };
  struct Slot {
    std::uint64_t pages_id = 0;
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
  std::int32_t heads_, slots_ = 0, row_pages_ = 0;
  std::vector<Slot> slot_;
  TensorArray<std::int32_t> page_;                         // [layers, slots, kv_heads, row_pages]
  TensorArray<std::int32_t> page_begin_, len_, counters_;  // [slots * kv_heads]
  TensorArray<float> temperature_;                         // [slots]
  TensorArray<std::uint64_t> key_;                         // [slots]
  TensorArray<std::int32_t> token_;                        // [slots]
  KvRows pool_;
  std::map<Size, CudaGraph> recorded_;
  std::vector<const void*> recorded_places_;
  bool is_full_ = false;
  std::string remark_;
  Size last_;
};

}  // namespace kvlab
