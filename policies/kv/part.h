#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "policies/kv/needs.h"
#include "policies/kv/step.h"

namespace kvlab {

enum class Trait : std::uint8_t {
  // trigger
  kActs,
  kCutsPrompts,  // before the first decode step
  kCutsChunks,   // before the prompt's end
  kCutsInDecode,
  kCutsAgain,
  kKeepsCounts,  // one token leaves per new decoded one
  // scorer
  kScores,
  kScalesDiffer,  // scores of different heads are not comparable
  kRanksAfterCounts,
  kProtectsShare,  // the number of protected tokens follows from counts
  kSplitsHeads,    // or the allocator: unequal counts in a layer
  // disposal
  kShrinks,
  kKeepsOthers,
  // format, selector, pruner
  kEncodes,
  kSelects,
  kPrunes,
  // recipe
  kBudget,
  kPeerTies,
  kSharesPrompts,   // prefix_reuse: full_copy
  kSharesPrefixes,  // prefix_reuse other than none
  kRecomputes,      // on_preempt: recompute_chunked
};

class Traits {
 public:
  Traits() = default;
  Traits(std::initializer_list<Trait> all) {
    for (const Trait trait : all) set(trait);
  }
  Traits& set(Trait trait, bool has = true) { return bits_ |= has ? bit(trait) : 0, *this; }
  Traits& operator|=(const Traits& o) {
    bits_ |= o.bits_;
    return *this;
  }
  [[nodiscard]] bool has(Trait trait) const { return (bits_ & bit(trait)) != 0; }
  [[nodiscard]] bool has_all(const Traits& o) const { return (bits_ & o.bits_) == o.bits_; }
  [[nodiscard]] bool has_any(const Traits& o) const { return (bits_ & o.bits_) != 0; }

 private:
  static std::uint32_t bit(Trait trait) { return 1U << static_cast<unsigned>(trait); }
  std::uint32_t bits_ = 0;
};

struct Conflict {
  Traits with, without;
  std::string why;  // "{scorer}", ...: part names; "{splitter}": the part with kSplitsHeads
};

// With this step's tokens: [begin, end).
struct Lengths {
  std::int32_t begin = 0, end = 0;
  static constexpr Lengths all() { return {0, INT32_MAX}; }
  static constexpr Lengths only(std::int32_t len) { return {len, len + 1}; }
  // Around `len` with equally many whole blocks of `tokens` after `offset`; those that complete one are excluded if tokens > 1.
  static constexpr Lengths inside_block(std::int32_t len, std::int32_t tokens, std::int32_t offset = 0) {
    if (len <= offset) return {0, offset + 1};
    if (tokens == 1) return {offset + 1, INT32_MAX};
    const std::int32_t begin = offset + (len - offset) / tokens * tokens;
    return len == begin ? only(len) : Lengths{begin + 1, begin + tokens};
  }
  [[nodiscard]] constexpr Lengths within(const Lengths& o) const { return {begin < o.begin ? o.begin : begin, end < o.end ? end : o.end}; }
};

// Equal keys and row lengths give equal calls and bytes in decode.
class StepKey {
 public:
  static constexpr std::int64_t kForEver = INT32_MAX;
  // Constant for `steps` decode steps, with this one. Throws InternalError above kMost.
  void add(std::int32_t number, std::int64_t steps = 1) {
    if (size_ == kMost) throw InternalError("a step depends on more numbers than its key holds");
    numbers_[size_++] = number;
    if (steps < lasts_) lasts_ = steps;
  }
  void replace_last(std::int32_t number) { numbers_[size_ - 1] = number; }
  [[nodiscard]] std::int64_t lasts() const { return lasts_; }
  [[nodiscard]] std::size_t hash() const {
    std::uint64_t h = size_;
    for (std::size_t i = 0; i < size_; ++i) h = (h ^ static_cast<std::uint32_t>(numbers_[i])) * 0x9E3779B97F4A7C15ULL + (h >> 29);
    return h;
  }
  friend bool operator==(const StepKey& a, const StepKey& b) { return a.size_ == b.size_ && a.numbers_ == b.numbers_; }
  struct Hash {
    std::size_t operator()(const StepKey& key) const { return key.hash(); }
  };

 private:
  static constexpr std::size_t kMost = 20;
  std::array<std::int32_t, kMost> numbers_{};
  std::size_t size_ = 0;
  std::int64_t lasts_ = kForEver;
};

class TrainedTensors;

class KvPart;

// State per sequence, a member of the part.
class PartState {
 public:
  explicit PartState(KvPart& part);
  virtual ~PartState() = default;
  PartState(const PartState&) = delete;
  PartState& operator=(const PartState&) = delete;
  // The sequence at this index of the batch is gone or moved.
  virtual void forget(std::int32_t index) = 0;
};

// Sees one layer of a ragged batch at a time and computes only through Ops, also on shapes (null data).
class KvPart {
 public:
  KvPart() = default;
  KvPart(const KvPart&) = delete;
  KvPart& operator=(const KvPart&) = delete;
  virtual ~KvPart() = default;
  [[nodiscard]] virtual Needs needs() const { return {}; }
  [[nodiscard]] virtual Traits provides() const { return {}; }
  [[nodiscard]] virtual std::vector<Conflict> conflicts() const { return {}; }
  // 4-byte statistics per token and KV head, from channel first_word() on; 0 for new tokens.
  [[nodiscard]] virtual std::int32_t num_words() const { return 0; }
  [[nodiscard]] virtual std::int32_t resident_words() const { return num_words(); }
  virtual void bind(std::int32_t first_word) { first_word_ = first_word; }
  // "" or why this part cannot run.
  [[nodiscard]] virtual std::string refuses(const ModelShape&) const { return ""; }
  // Layers of one kind are independent and make equal calls for equal rows. Return `layer` for dependent layers or many kinds.
  [[nodiscard]] virtual std::int32_t layer_kind(std::int32_t /*layer*/) const { return 0; }
  // Adds what decode work depends on, besides row lengths, the trigger's target and being first after the prompt.
  virtual void step_key(const SeqStep&, StepKey&) const {}
  // While nothing is evicted.
  virtual void whole_key(const SeqStep& seq, StepKey& key) const { step_key(seq, key); }
  // Lengths around `len` with affine calls and bytes in decode, at an equal key. For steps that cut, only with Scorer::cuts_affinely().
  [[nodiscard]] virtual Lengths affine_lengths(std::int32_t /*len*/) const { return Lengths::all(); }
  // True: calls do not depend on earlier steps. Token words are data.
  [[nodiscard]] virtual bool keeps_no_state() const { return false; }
  // Computes KV heads together: needs equally long rows before the policy acts (kFound), or also after (kLeft).
  enum class EqualHeads : std::uint8_t { kNotNeeded, kFound, kLeft };
  [[nodiscard]] virtual EqualHeads equal_heads() const { return EqualHeads::kNotNeeded; }
  // True: attends to more than the rows' tokens.
  [[nodiscard]] virtual bool adds_segments() const { return false; }
  [[nodiscard]] virtual bool splits_heads() const { return false; }
  // kIfGiven: optional.
  enum class TakesWeights : std::uint8_t { kNo, kIfGiven, kAlways };
  [[nodiscard]] virtual TakesWeights takes_weights() const { return TakesWeights::kNo; }
  // Called once. Throws InputError for a missing tensor; refuses() checks shapes.
  virtual void set_weights(const std::shared_ptr<const TrainedTensors>&) {}
  // PartState::forget() of all states. Parts pass it on to parts that they hold.
  virtual void forget(std::int32_t index) {
    for (PartState* const state : states_) state->forget(index);
  }

 protected:
  [[nodiscard]] std::int32_t first_word() const { return first_word_; }

 private:
  friend PartState;
  std::int32_t first_word_ = 0;
  std::vector<PartState*> states_;
};

inline PartState::PartState(KvPart& part) { part.states_.push_back(this); }

// Overlap of a decode step's transfers; a layer's attention waits for its own.
// kLayerBefore: tokens are known earlier, else the layer's query chooses. kKeyRebuild: overlaps low-rank decoding ("low_rank_rebuild").
enum class FetchBeside : std::uint8_t { kNothing, kLayerBefore, kKeyRebuild };

struct TierBytes {
  std::int64_t gpu = 0, host = 0, disk = 0;
  TierBytes& operator+=(const TierBytes& o) {
    gpu += o.gpu, host += o.host, disk += o.disk;
    return *this;
  }
  [[nodiscard]] TierBytes with_gpu(std::int64_t more) const { return {gpu + more, host, disk}; }
  friend bool operator==(const TierBytes&, const TierBytes&) = default;
};

struct Traffic {
  std::int64_t fetched_bytes = 0;               // from a lower tier
  std::int64_t asked_units = 0, hit_units = 0;  // tokens, pages or clusters wanted; hits: on the GPU
  std::int64_t stored_bytes = 0;                // to a lower tier
  std::int64_t disk_bytes = 0;                  // in stored form
  std::int64_t in_place_bytes = 0;              // of fetched_bytes: used in place, no link crossed
  Traffic& operator+=(const Traffic& o) {
    fetched_bytes += o.fetched_bytes, asked_units += o.asked_units, hit_units += o.hit_units;
    stored_bytes += o.stored_bytes, disk_bytes += o.disk_bytes, in_place_bytes += o.in_place_bytes;
    return *this;
  }
};

}  // namespace kvlab
