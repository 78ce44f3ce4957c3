#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/backend/engine_model.h"
#include "engine/serve/block_pages.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// Requests go by their number in the trace: slots of a replica are reused while jobs are on their way.

// Something that happens to a request's sequence.
struct SequenceAction {
  enum class Kind : std::uint8_t {
    kFinish,   // forget it
    kForget,   // its KV, to be recomputed
    kSwapOut,  // its KV moves to CPU memory
    kSwapIn,   // and back, into `blocks` where it has not left them
    kRun,      // its share of a step
  };
  Kind kind = Kind::kFinish;
  std::uint64_t request = 0;
  std::vector<TakenBlock> blocks = {};  // kRun: after those it has
  // ---- of kRun ----
  StepEntry share = {};            // computed_before counts the tokens that its first blocks already hold, if it starts anew
  std::int32_t prompt_tokens = 0;  // as the policy is to see it
  bool is_published = false;       // if the policy cuts it, its blocks stay unchanged for others to find

  [[nodiscard]] std::int32_t end() const { return share.computed_before + share.tokens; }
};

// All that happens on the device side between two outputs.
struct StepJob {
  std::vector<EngineSequence> arrived;  // `draws` is the request's number, `ids` are those known before it runs
  std::vector<BlockId> split;           // blocks whose content is lost
  std::vector<SequenceAction> actions;  // kRun after the others
};

// Runs steps on the model in the order they are handed over: the engine's counterpart of a step's cost. Holds the sequences, the pages of
// the pool's blocks in the model's memory, and swapped KV in a second pool of pages in CPU memory. Knows neither clock nor scheduler.
class StepExecutor {
 public:
  struct Options {
    std::int64_t num_blocks = 0, host_blocks = 0;  // on the device, and room for swapped KV
    std::int32_t block_tokens = 16;
    std::uint64_t seed = 1;
    float temperature = 0;            // 0: greedy
    bool keeps_tokens = false;        // emitted tokens of finished requests can be asked for
    bool shares_blocks = true;        // rows may be published
    std::int32_t longest_tokens = 0;  // of a request; 0: unknown
  };
  // Errors (InputError) as PolicyCache's: on a GPU also blocks that do not fit into its memory.
  StepExecutor(const EngineModel& model, const Recipe& recipe, const Options& options);
  ~StepExecutor();

  // True: sequences may be packed once their prompts are complete.
  [[nodiscard]] bool may_rest() const { return cache_->may_rest(); }
  // Returns when all of it is done. Errors (InputError): a sequence that the recipe refuses, a cut that the plan did not announce.
  void run(StepJob job);
  // Before the first step: touches the memory that steps will use and runs a few on made-up tokens, so that the first request meets warm
  // caches and running threads. On a GPU everything is made ready for steps up to `most`, one of the largest runs, and where the policy
  // keeps everything they run over this cache, whose decode steps are recorded. Its pages are free again afterwards.
  void warm_up(const EngineModel::Load& most);

  // Emitted tokens by request number, where they are kept.
  [[nodiscard]] const std::map<std::uint64_t, std::vector<std::int32_t>>& tokens() const { return tokens_; }
  [[nodiscard]] const KvPages& pages() const { return cache_->pages(); }
  [[nodiscard]] const KvPages& host_pages() const { return host_; }
  [[nodiscard]] std::int64_t block_pages() const { return blocks_.mapped_blocks() * pages_per_block_; }
  // Pages that belong to blocks or sequences: all that are in use, unless some were lost. O(pages).
  [[nodiscard]] std::int64_t explained_pages() const;
  // Tokens that were said to be in the prefix cache and had to be computed: their writer had been preempted before its step.
  [[nodiscard]] std::int64_t repaired_tokens() const { return repaired_; }
  // Bytes that its sequences hold in the cache's memory and beside it; pages of blocks count once per reader, swapped KV does not count.
  [[nodiscard]] PolicyCache::HeldBytes held() const;
  // The model's remark on its steps so far (EngineModel::remark), and the number of requests that could not be packed.
  [[nodiscard]] std::string remark() const;

 private:
  struct Served {
    EngineSequence sequence;
    std::vector<TakenBlock> blocks;  // of its rows, while these are stored in blocks
    std::vector<std::int32_t> emitted;
    bool has_started = false, is_swapped = false;
    bool is_in_blocks = false;  // others may find its blocks, or it never comes to rest and takes their pages for its own
    bool is_uncut = false;      // as far as the plan says; it then has blocks
  };
  Served& at(std::uint64_t request);
  void apply(const SequenceAction& action);
  void forget(Served& s);
  void reserve_pages();
  void move(Served& s, KvPages& from, KvPages& to, bool back, const std::vector<TakenBlock>& blocks);
  void begin(Served& s, const SequenceAction& row);
  void give_blocks(Served& s, const std::vector<TakenBlock>& blocks);
  [[nodiscard]] std::int64_t pages_at_once() const;
  void fill(Served& s, std::int32_t begin, std::int32_t end);
  void check_uncut(const Served& s, const SequenceAction& row) const;
  void add_row(const SequenceAction& row);
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
