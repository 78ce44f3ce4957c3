#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

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

}  // namespace kvlab
