#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/memory_watch.h"
#include "kernels/device/emulated/device_heap.h"
#include "kernels/ops.h"
#include "tests/cuda/cuda_fixture.h"

namespace kvlab {

// FNV-1a over words of 32 bits.
struct WordHash {
  std::uint32_t value = 2166136261U;
  void add(std::uint32_t word) {
    for (int byte = 0; byte < 4; ++byte, word >>= 8) value = (value ^ (word & 0xFFU)) * 16777619U;
  }
  void add(std::int64_t number) { add(static_cast<std::uint32_t>(number)), add(static_cast<std::uint32_t>(number >> 32)); }
};

// The words that each operation changes in the memory that it can reach, and its calls, as hashes by the operation's name. Two programs
// with equal hashes wrote the same bits in the same order of addresses.
class WrittenWords : public OpClock {
 public:
  struct Op {
    std::int64_t calls = 0;
    WordHash call, written;
  };
  // Memory of one moment, as ranges of whole words.
  using Ranges = std::vector<std::span<const std::uint32_t>>;

  void begin() override {
    before_.clear(), ranges_ = ranges();
    for (const auto& range : ranges_) before_.insert(before_.end(), range.begin(), range.end());
  }
  void end(const OpCall& call) override {
    settle();
    Op& op = ops_[std::string(call.op)];
    ++op.calls;
    for (const std::int64_t n : {call.rows, call.tokens, call.outputs, call.bytes, call.flops, call.shared_bytes}) op.call.add(n);
    const std::uint32_t* before = before_.data();
    for (const auto& range : ranges_) {
      constexpr std::size_t kPiece = 4096;  // most are equal, and compared at once
      for (std::size_t i = 0; i < range.size(); i += kPiece) {
        const auto piece = range.subspan(i, std::min(kPiece, range.size() - i));
        if (std::memcmp(piece.data(), before + i, piece.size_bytes()) != 0) add_changes(piece, before + i, op.written);
      }
      before += range.size();
    }
  }
  [[nodiscard]] const std::map<std::string, Op>& ops() const { return ops_; }

 protected:
  virtual Ranges ranges() = 0;
  virtual void settle() {}  // waits until the operation is done

 private:
  // Addresses within the memory itself (operands of kernels) differ from process to process: their distance to the first range counts.
  void add_changes(std::span<const std::uint32_t> now, const std::uint32_t* before, WordHash& to) const {
    const auto lowest = reinterpret_cast<std::uint64_t>(ranges_.front().data());
    const auto end = reinterpret_cast<std::uint64_t>(ranges_.back().data() + ranges_.back().size());
    for (std::size_t i = 0; i < now.size(); ++i) {
      std::uint64_t address = 0;
      if (i % 2 == 0 && i + 1 < now.size()) std::memcpy(&address, &now[i], 8);
      if (address >= lowest && address < end) {
        if (std::memcmp(&now[i], before + i, 8) != 0) to.add(static_cast<std::int64_t>(address - lowest));
        ++i;
      } else if (now[i] != before[i]) {
        to.add(now[i]);
      }
    }
  }

  Ranges ranges_;
  std::vector<std::uint32_t> before_;
  std::map<std::string, Op> ops_;
};

// Of operations on the CPU: arrays of TensorMemory, the scratch memory of Ops, and the ranges that a test adds.
class WrittenOnCpu final : public WrittenWords, public big_memory::Watcher {
 public:
  WrittenOnCpu() { big_memory::watch(this); }
  ~WrittenOnCpu() override { big_memory::watch(nullptr); }
  void follow(Ops& ops) {
    ops_to_probe_ = &ops;
    scratch_ = reinterpret_cast<const std::uint32_t*>(ops.host_ints(1));
    ops.time_with(this);
  }
  void taken(void* memory, std::size_t bytes) override {
    std::memset(memory, 0xFF, bytes);
    arrays_[order_++] = {static_cast<const std::uint32_t*>(memory), bytes / 4};
  }
  void given_back(void* memory) override {
    std::erase_if(arrays_, [&](const auto& array) { return array.second.data() == memory; });
  }
  std::span<const std::uint32_t> output;  // attention's

 private:
  Ranges ranges() override {
    Ranges all;
    for (const auto& [order, array] : arrays_) all.push_back(array);
    const auto* end = reinterpret_cast<const std::uint32_t*>(ops_to_probe_->host_ints(1));
    if (end >= scratch_ && end < scratch_ + kChunk) all.emplace_back(scratch_, static_cast<std::size_t>(end - scratch_));
    all.push_back(output);
    return all;
  }

  static constexpr std::ptrdiff_t kChunk = 1 << 18;  // words of the first chunk of Ops; what is in a later one is not looked at
  Ops* ops_to_probe_ = nullptr;
  const std::uint32_t* scratch_ = nullptr;
  std::int64_t order_ = 0;
  std::map<std::int64_t, std::span<const std::uint32_t>> arrays_;
};

#if KVLAB_EMULATED
// Of emulated kernels: all device memory.
class WrittenByKernels final : public WrittenWords {
 public:
  explicit WrittenByKernels(CudaContext& cuda) : cuda_(cuda) {}
  void begin() override {
    cuda_.synchronize();
    const emulated::DeviceAccess access;
    WrittenWords::begin();
  }
  void end(const OpCall& call) override {
    cuda_.synchronize();
    const emulated::DeviceAccess access;
    WrittenWords::end(call);
  }

 private:
  Ranges ranges() override {
    Ranges all;
    for (const auto& memory : emulated::device_memory_in_use())
      all.emplace_back(reinterpret_cast<const std::uint32_t*>(memory.data()), memory.size() / 4);
    return all;
  }
  CudaContext& cuda_;
};
#endif

}  // namespace kvlab
