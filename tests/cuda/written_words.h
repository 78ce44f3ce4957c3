#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "base/big_array.h"
#include "kernels/device/emulated/device_memory.h"
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

// The words that each operation changes in the memory that it can reach, and its calls, as hashes by the operation's name. Ranges of memory
// count in any order, since their addresses differ from run to run.
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
    std::uint32_t of_ranges = 0;
    for (const auto& range : ranges_) {
      constexpr std::size_t kPiece = 4096;  // most are equal, and compared at once
      WordHash changed;
      for (std::size_t i = 0; i < range.size(); i += kPiece) {
        const auto piece = range.subspan(i, std::min(kPiece, range.size() - i));
        if (std::memcmp(piece.data(), before + i, piece.size_bytes()) != 0) add_changes(piece, before + i, changed);
      }
      if (changed.value != WordHash().value) of_ranges += changed.value;
      before += range.size();
    }
    op.written.add(of_ranges);
  }
  [[nodiscard]] const std::map<std::string, Op>& ops() const { return ops_; }

 protected:
  virtual Ranges ranges() = 0;
  virtual void settle() {}  // waits until the operation is done

 private:
  // An address within the memory (operands of kernels) counts as its distance to the begin of its range.
  void add_changes(std::span<const std::uint32_t> now, const std::uint32_t* before, WordHash& to) const {
    for (std::size_t i = 0; i < now.size(); ++i) {
      std::int64_t distance = -1;
      if (i % 2 == 0 && i + 1 < now.size()) distance = distance_in_range(&now[i]);
      if (distance >= 0) {
        if (std::memcmp(&now[i], before + i, 8) != 0) to.add(distance);
        ++i;
      } else if (now[i] != before[i]) {
        to.add(now[i]);
      }
    }
  }

  // Of the address that two words hold; -1: it is none.
  [[nodiscard]] std::int64_t distance_in_range(const std::uint32_t* words) const {
    std::uint64_t address = 0;
    std::memcpy(&address, words, 8);
    for (const auto& range : ranges_) {
      const auto begin = reinterpret_cast<std::uint64_t>(range.data());
      if (address >= begin && address < begin + range.size_bytes()) return static_cast<std::int64_t>(address - begin);
    }
    return -1;
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
