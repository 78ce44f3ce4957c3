#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "engine/backend/engine_model.h"
#include "policies/kv/cache/kv_pages.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// `takes` identifies the content.
struct TakenBlock {
  BlockId id{};
  std::uint32_t takes = 0;
};

// A pool's blocks as pages until they are taken again or dropped. Rows that read them are further users.
class BlockPages {
 public:
  BlockPages(KvPages& pages, std::int64_t num_blocks, std::int32_t pages_per_block);
  ~BlockPages();
  BlockPages(const BlockPages&) = delete;
  BlockPages& operator=(const BlockPages&) = delete;

  // Fresh if taken since.
  const std::vector<std::int32_t>& pages_of(TakenBlock block);
  // Tokens computed, or to be by the next step.
  [[nodiscard]] std::int32_t filled(TakenBlock block) const;
  void fill(TakenBlock block, std::int32_t tokens);
  void drop(BlockId block);

  [[nodiscard]] std::int64_t mapped_blocks() const { return mapped_; }
  void add_pages(std::set<std::int32_t>& pages) const;

 private:
  struct Entry {
    std::uint32_t takes = 0;
    std::int32_t filled = 0;
    std::vector<std::int32_t> pages;
  };
  void give_back(Entry& entry);
  KvPages& pages_;
  std::int32_t pages_per_block_;
  std::int64_t mapped_ = 0;
  std::vector<Entry> blocks_;
};

// Requests have trace numbers: replicas reuse slots.

struct ExecutorAction {
  enum class Kind : std::uint8_t {
    kFinish,
    kForget,   // to be recomputed
    kSwapOut,  // to CPU memory
    kSwapIn,   // into `blocks`, if in blocks
    kRun,
  };
  Kind kind = Kind::kFinish;
  std::uint64_t request = 0;
  std::vector<TakenBlock> blocks = {};
  // ---- kRun only ----
  StepEntry share = {};            // computed_before: tokens in its first blocks
  std::int32_t prompt_tokens = 0;  // as the policy sees it
  bool is_published = false;       // blocks stay unchanged

  [[nodiscard]] std::int32_t end() const { return share.computed_before + share.tokens; }
};

struct StepJob {
  std::vector<EngineSequence> arrived;  // `draws`: request number; `ids`: known ones
  std::vector<BlockId> split;           // content is lost
  std::vector<ExecutorAction> actions;  // kRun after the others
};

// Runs jobs in order. Swapped KV is in CPU memory.
class StepExecutor {
 public:
  struct Options {
    std::int64_t num_blocks = 0, host_blocks = 0;
    std::int32_t block_tokens = 16;
    std::uint64_t seed = 1;
    float temperature = 0;            // 0: greedy
    bool keeps_tokens = false;        // of finished requests
    bool shares_blocks = true;        // rows may be published
    std::int32_t longest_tokens = 0;  // 0: unknown
  };
  // Throws InputError as PolicyCache, and for blocks beyond GPU memory.
  StepExecutor(const EngineModel& model, const Recipe& recipe, const Options& options);
  ~StepExecutor();

  [[nodiscard]] bool may_rest() const { return cache_->may_rest(); }
  // Throws InputError for refused sequences and unannounced cuts.
  void run(StepJob job);
  // Runs made-up steps. On a GPU, prepares for `most` and runs a largest step, over this cache if the policy keeps everything. Frees the
  // pages.
  void warm_up(const EngineModel::Load& most);

  [[nodiscard]] const std::map<std::uint64_t, std::vector<std::int32_t>>& tokens() const { return tokens_; }
  [[nodiscard]] const KvPages& pages() const { return cache_->pages(); }
  [[nodiscard]] const KvPages& host_pages() const { return host_; }
  [[nodiscard]] std::int64_t block_pages() const { return blocks_.mapped_blocks() * pages_per_block_; }
  // In use, unless some leaked. O(pages).
  [[nodiscard]] std::int64_t explained_pages() const;
  // Prefix hits recomputed: their writer was preempted.
  [[nodiscard]] std::int64_t repaired_tokens() const { return repaired_; }
  // Block pages count per reader, swapped KV not.
  [[nodiscard]] PolicyCache::HeldBytes held() const;
  // With requests that could not be packed.
  [[nodiscard]] std::string remark() const;

 private:
  struct Served {
    EngineSequence sequence;
    std::vector<TakenBlock> blocks;  // of its rows, while in blocks
    std::vector<std::int32_t> emitted;
    bool has_started = false, is_swapped = false;
    bool is_in_blocks = false;  // shares its blocks, or is never packed
    bool is_uncut = false;      // so far, as planned
  };
  Served& at(std::uint64_t request);
  void apply(const ExecutorAction& action);
  void forget(Served& s);
  void reserve_pages();
  void move(Served& s, KvPages& from, KvPages& to, bool back, const std::vector<TakenBlock>& blocks);
  void begin(Served& s, const ExecutorAction& row);
  void give_blocks(Served& s, const std::vector<TakenBlock>& blocks);
  [[nodiscard]] std::int64_t pages_at_once() const;
  void fill(Served& s, std::int32_t begin, std::int32_t end);
  void check_uncut(const Served& s, const ExecutorAction& row) const;
  void add_row(const ExecutorAction& row);
  void emit(Served& s, std::int32_t end, std::int32_t token);
  void run_some(PolicyCache& cache, std::int32_t tokens, std::int32_t longest);

  const EngineModel& model_;
  Options options_;
  std::unique_ptr<PolicyCache> cache_;
  KvPages host_;
  std::int32_t pages_per_block_;
  BlockPages blocks_;
  std::unordered_map<std::uint64_t, Served> served_;
  std::map<std::uint64_t, std::vector<std::int32_t>> tokens_;
  std::vector<StepPiece> pieces_;
  std::vector<EngineModel::Draw> draws_;
  std::vector<std::int32_t> ids_, positions_;
  std::int64_t repaired_ = 0, started_ = 0, kept_decoded_ = 0;
};

}  // namespace kvlab
