#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace kvlab {

// Files and folders that the program replaces or removes. None of these functions follows a symbolic link in the last part of a path.

enum class PathKind : std::uint8_t { kNothing, kFile, kFolder, kLink, kOther };
PathKind kind_of(const std::filesystem::path& path);

// Kind of the existing entry; a link is an InputError that names it.
PathKind kind_without_link(const std::filesystem::path& path);

// Size and fingerprint of a file's bytes: "1234 9f86d081884c7d65".
std::string digest_of_file(const std::filesystem::path& path);

// Returns once the written bytes are on the disk. A folder: the names in it.
void sync_path(const std::filesystem::path& path);
// The same of some files and last of the folder that they are in: all are on their way before the first is waited for.
void sync_folder_of(const std::vector<std::filesystem::path>& files, const std::filesystem::path& folder);

// Puts the folder `fresh` in the place of `target`. `fresh` then holds the earlier content of `target`, if any.
void exchange_folders(const std::filesystem::path& fresh, const std::filesystem::path& target);

// Removes those of the named files that are in the folder, and the folder itself where nothing else is left. `last` is removed last.
void remove_files(const std::filesystem::path& folder, const std::set<std::string>& names, const std::string& last);

}  // namespace kvlab
