#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace kvlab {

// Read once.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `size` > 0 bytes; 0 at the end. Throws InputError for damaged data.
  virtual std::size_t read(char* to, std::size_t size) = 0;
};

// File or shell pipe; detects gzip and Zstandard by content. Throws InputError for directories, named pipes, devices, Git LFS pointers and
// read failures.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

std::unique_ptr<ByteSource> bytes_in_memory(const std::string& name, std::span<const char> bytes);

// Compresses .gz and .zst. Writes PATH.part; close() renames it, else no file remains.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(std::span<const char> bytes) = 0;
  virtual void close() = 0;
};
std::unique_ptr<ByteSink> create_file(const std::string& path);
// Throws InputError for directories, pipes and devices; call it before long work.
void check_replaceable(const std::string& path);

}  // namespace kvlab
