#pragma once

namespace kvlab {

struct Cast;
struct Dequantize;
struct LayerStep;
struct LowRankRebuild;
struct PruneChannels;
struct RestoreOutliers;
struct Unsparsify;

// Keeps what formats encode, so that rows need not hold it: is told of every operation that fills listed vectors from codes, one after
// another. Vectors that several list hold what all of them leave there, in this order, whatever was in the rows before the first.
class CodeKeeper {
 public:
  virtual ~CodeKeeper() = default;
  virtual void keep(const LayerStep& step, const Cast& op) = 0;
  virtual void keep(const LayerStep& step, const Dequantize& op) = 0;
  virtual void keep(const LayerStep& step, const LowRankRebuild& op) = 0;
  virtual void keep(const LayerStep& step, const PruneChannels& op) = 0;
  virtual void keep(const LayerStep& step, const RestoreOutliers& op) = 0;
  virtual void keep(const LayerStep& step, const Unsparsify& op) = 0;
};

}  // namespace kvlab
