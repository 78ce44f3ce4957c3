#pragma once

#include <cstdint>

namespace kvlab {

// Indices with a type each: four bytes, stable when vectors grow, and one kind cannot be passed for another.
enum class RequestId : std::uint32_t {};  // a live request's slot in its replica's table; slots are reused
enum class BlockId : std::uint32_t {};    // a block of KV memory in one replica's pool
enum class ReplicaId : std::uint32_t {};

template <class Id>
constexpr std::uint32_t index(Id id) {
  return static_cast<std::uint32_t>(id);
}

inline constexpr BlockId kNoBlock{0xffffffffU};
inline constexpr RequestId kNoRequest{0xffffffffU};
inline constexpr ReplicaId kNoReplica{0xffffffffU};

}  // namespace kvlab
