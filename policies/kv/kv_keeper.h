#pragma once

namespace kvlab {

struct Cast;
struct Dequantize;
struct LayerStep;
struct LowRankRebuild;
struct PackDropped;
struct PruneChannels;
struct RestoreOutliers;
struct Selection;
struct Unsparsify;

// Keeps what leaves the rows and stays in the cache all the same, and brings it back.
class KvKeeper {
 public:
  virtual ~KvKeeper() = default;

  // What formats encode, so that rows need not hold it: every operation that fills listed vectors from codes, one after another. Vectors
  // that several list hold what all of them leave there, in this order, whatever was in the rows before the first.
  virtual void keep(const LayerStep& step, const Cast& op) = 0;
  virtual void keep(const LayerStep& step, const Dequantize& op) = 0;
  virtual void keep(const LayerStep& step, const LowRankRebuild& op) = 0;
  virtual void keep(const LayerStep& step, const PruneChannels& op) = 0;
  virtual void keep(const LayerStep& step, const RestoreOutliers& op) = 0;
  virtual void keep(const LayerStep& step, const Unsparsify& op) = 0;

  // Tokens that move to host memory.
  virtual void keep(const LayerStep& step, const PackDropped& op) = 0;

  // What a decode step reads is about to be read: K and V of these tokens that lie on a lower tier (Selector::lower) come into the rows;
  // index null: of all tokens. Asked again in the same step and layer it does nothing.
  virtual void fetch(const LayerStep& step, const Selection& selection) = 0;
};

}  // namespace kvlab
