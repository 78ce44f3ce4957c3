#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace kvlab {

// No function follows a symbolic link in a path's last part.

enum class PathKind : std::uint8_t { kNothing, kFile, kFolder, kLink, kOther };
PathKind kind_of(const std::filesystem::path& path);

// Throws InputError for a link.
PathKind kind_without_link(const std::filesystem::path& path);

// Size and fingerprint: "1234 9f86d081884c7d65".
std::string digest_of_file(const std::filesystem::path& path);

// Waits until bytes, or a folder's names, are on disk.
void sync_path(const std::filesystem::path& path);
// Syncs files concurrently, then their folder.
void sync_folder_of(const std::vector<std::filesystem::path>& files, const std::filesystem::path& folder);

// Swaps the two; `target` may be absent.
void exchange_folders(const std::filesystem::path& fresh, const std::filesystem::path& target);

// Removes `last` at the end, and the folder if empty.
void remove_files(const std::filesystem::path& folder, const std::set<std::string>& names, const std::string& last);

}  // namespace kvlab
