#pragma once

// Statements of a few parts beyond the interfaces of part.h.
namespace kvlab {

// An allocator that may choose the tokens themselves, not their numbers alone.
class FixesTokens {
 public:
  virtual ~FixesTokens() = default;
  [[nodiscard]] virtual bool fixes_tokens() const = 0;
};

// A scorer that may rank tokens again once the counts are known, which is too late for such an allocator.
class RanksAfterCounts {
 public:
  virtual ~RanksAfterCounts() = default;
  [[nodiscard]] virtual bool ranks_after_counts() const = 0;
};

// An allocator that may round a share of the prompt once for the whole model: a row then holds up to one token more than its own share.
class RoundsForModel {
 public:
  virtual ~RoundsForModel() = default;
  [[nodiscard]] virtual bool rounds_for_model() const = 0;
};

}  // namespace kvlab
