#pragma once

#include <cstdint>

namespace kvlab {

// Typed indices: four bytes, stable when vectors grow.
enum class RequestId : std::uint32_t {};  // slot in a replica's request table; slots are reused
enum class BlockId : std::uint32_t {};    // in one replica's pool
enum class ReplicaId : std::uint32_t {};

template <class Id>
constexpr std::uint32_t index(Id id) {
  return static_cast<std::uint32_t>(id);
}

inline constexpr BlockId kNoBlock{0xffffffffU};
inline constexpr RequestId kNoRequest{0xffffffffU};
inline constexpr ReplicaId kNoReplica{0xffffffffU};

}  // namespace kvlab
