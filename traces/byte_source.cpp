#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/read_file.h"
#include "traces/bytes.h"

namespace kvlab {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 18;

class FileBytes final : public ByteSource {
 public:
  explicit FileBytes(std::string path) : path_(std::move(path)) {
    refuse_special_file(path_, "a trace file");
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) throw InputError(open_error(path_));
  }
  ~FileBytes() override { ::close(file_); }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  std::size_t read(char* to, std::size_t size) override {
    for (;;) {
      const ssize_t got = ::read(file_, to, size);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) throw InputError(path_ + ": cannot be read: " + std::strerror(errno));
    }
  }

 private:
  std::string path_;
  int file_ = -1;
};

// Bytes in memory, such as those read to detect the kind of source, then those of `rest` (null: none).
class Rejoined final : public ByteSource {
 public:
  Rejoined(std::string head, std::unique_ptr<ByteSource> rest) : head_(std::move(head)), rest_(std::move(rest)) {}
  std::size_t read(char* to, std::size_t size) override {
    if (given_ == head_.size()) return rest_ == nullptr ? 0 : rest_->read(to, size);
    const std::size_t got = std::min(size, head_.size() - given_);
    std::copy_n(head_.data() + given_, got, to);
    given_ += got;
    return got;
  }

 private:
  std::string head_;
  std::size_t given_ = 0;
  std::unique_ptr<ByteSource> rest_;
};

class GzipBytes final : public ByteSource {
 public:
  GzipBytes(std::string name, std::unique_ptr<ByteSource> packed) : name_(std::move(name)), packed_(std::move(packed)), in_(kChunkBytes) {
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK) throw InternalError("zlib cannot be started");
  }
  ~GzipBytes() override { inflateEnd(&stream_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

  std::size_t read(char* to, std::size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(std::min(size, kChunkBytes));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (stream_.avail_in == 0 && !refill()) {
        if (inside_member_) throw InputError(name_ + ": the .gz file is cut short; fetch or compress it again");
        return 0;
      }
      if (!inside_member_) {  // next member: gzip files may be concatenated
        inflateReset(&stream_);
        inside_member_ = true;
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END)
        inside_member_ = false;
      else if (result != Z_OK && result != Z_BUF_ERROR)
        throw InputError(name_ + ": the .gz file is damaged; fetch or compress it again");
    }
    return wanted - stream_.avail_out;
  }

 private:
  static constexpr int kGzipOnly = 15 + 16;  // largest window; gzip header required

  bool refill() {
    stream_.next_in = reinterpret_cast<Bytef*>(in_.data());
    stream_.avail_in = static_cast<uInt>(packed_->read(in_.data(), in_.size()));
    return stream_.avail_in > 0;
  }

  std::string name_;
  std::unique_ptr<ByteSource> packed_;
  std::vector<char> in_;
  z_stream stream_{};
  bool inside_member_ = true;
};

class ZstdBytes final : public ByteSource {
 public:
  ZstdBytes(std::string name, std::unique_ptr<ByteSource> packed) : name_(std::move(name)), packed_(std::move(packed)), in_(kChunkBytes) {
    if (!context_) throw InternalError("zstd cannot be started");
  }

  std::size_t read(char* to, std::size_t size) override {
    ZSTD_outBuffer out{to, size, 0};
    while (out.pos == 0) {
      if (pending_.pos == pending_.size && !may_hold_output_) {
        pending_ = {in_.data(), packed_->read(in_.data(), in_.size()), 0};
        if (pending_.size == 0) {
          if (inside_frame_) throw InputError(name_ + ": the .zst file is cut short; fetch or compress it again");
          return 0;
        }
      }
      const std::size_t hint = ZSTD_decompressStream(context_.get(), &out, &pending_);
      if (ZSTD_isError(hint) != 0) throw InputError(name_ + ": the .zst file is damaged (" + ZSTD_getErrorName(hint) + ")");
      inside_frame_ = hint != 0;
      may_hold_output_ = inside_frame_ && out.pos == out.size;
    }
    return out.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* context) const noexcept { ZSTD_freeDStream(context); }
  };

  std::string name_;
  std::unique_ptr<ByteSource> packed_;
  std::vector<char> in_;
  std::unique_ptr<ZSTD_DStream, Free> context_{ZSTD_createDStream()};
  ZSTD_inBuffer pending_{nullptr, 0, 0};
  bool inside_frame_ = true;
  bool may_hold_output_ = false;
};

std::unique_ptr<ByteSource> unpacked(const std::string& name, std::unique_ptr<ByteSource> source) {
  std::string head(kLfsPointerBytes, '\0');
  std::size_t got = 0;
  while (got < head.size()) {
    const std::size_t more = source->read(head.data() + got, head.size() - got);
    if (more == 0) break;
    got += more;
  }
  head.resize(got);
  const bool is_gzip = head.starts_with("\x1f\x8b");
  const bool is_zstd = head.starts_with("\x28\xb5\x2f\xfd");
  refuse_lfs_pointer(head, name);
  auto whole = std::make_unique<Rejoined>(std::move(head), std::move(source));
  if (is_gzip) return std::make_unique<GzipBytes>(name, std::move(whole));
  if (is_zstd) return std::make_unique<ZstdBytes>(name, std::move(whole));
  return whole;
}

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path) { return unpacked(path, std::make_unique<FileBytes>(path)); }

std::unique_ptr<ByteSource> bytes_in_memory(const std::string& name, std::span<const char> bytes) {
  return unpacked(name, std::make_unique<Rejoined>(std::string(bytes.data(), bytes.size()), nullptr));
}

}  // namespace kvlab
