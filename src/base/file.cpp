#include "base/file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"

namespace molen {
namespace {

std::string reason() {
  return std::strerror(errno);
}

}  // namespace

std::string read_file(const fs::path& path, std::int64_t limit) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) throw UsageError("{}: cannot be read: {}", path.string(), reason());
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw UsageError("{}: cannot be read: {}", path.string(), reason());
  if (S_ISDIR(status.st_mode)) throw UsageError("{}: is a directory", path.string());
  if (status.st_size > limit)
    throw UsageError("{}: {} bytes, more than the limit of {}", path.string(), status.st_size, limit);
  std::string content;
  std::array<char, 1 << 16> block;
  while (true) {
    const ssize_t got = ::read(fd.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw UsageError("{}: cannot be read: {}", path.string(), reason());
    if (got == 0) return content;
    content.append(block.data(), static_cast<std::size_t>(got));
    if (static_cast<std::int64_t>(content.size()) > limit)
      throw UsageError("{}: more than the limit of {} bytes", path.string(), limit);
  }
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  const fs::path part = path.string() + fmt::format(".part.{}", ::getpid());
  {
    Descriptor fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fd.get() < 0) throw Error("{}: cannot be written: {}", path.string(), reason());
    std::size_t done = 0;
    while (done < content.size()) {
      const ssize_t wrote = ::write(fd.get(), content.data() + done, content.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        const std::string why = reason();
        ::unlink(part.c_str());
        throw Error("{}: cannot be written: {}", path.string(), why);
      }
      done += static_cast<std::size_t>(wrote);
    }
    if (::fsync(fd.get()) != 0 || ::close(fd.release()) != 0) {
      const std::string why = reason();
      ::unlink(part.c_str());
      throw Error("{}: cannot be written: {}", path.string(), why);
    }
  }
  if (::rename(part.c_str(), path.c_str()) != 0) {
    const std::string why = reason();
    ::unlink(part.c_str());
    throw Error("{}: cannot be replaced: {}", path.string(), why);
  }
  sync_directory(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void sync_directory(const fs::path& directory) {
  const Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network file systems refuse fsync on a directory (EINVAL); there the rename itself is the promise.
  if (fd.get() < 0 || (::fsync(fd.get()) != 0 && errno != EINVAL))
    throw Error("{}: cannot be flushed: {}", directory.string(), reason());
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  MOLEN_CHECK(context_ && EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) == 1, "SHA-256");
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_));
}

void Sha256::update(const void* data, std::size_t size) {
  const int ok = EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data, size);
  MOLEN_CHECK(ok == 1, "SHA-256 update");
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest;
  const int ok = EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), nullptr);
  MOLEN_CHECK(ok == 1, "SHA-256 final");
  std::string text;
  for (unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::string sha256_hex(std::string_view data) {
  Sha256 hash;
  hash.update(data.data(), data.size());
  return hash.hex();
}

std::string sha256_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UsageError("{}: cannot be read: {}", path.string(), reason());
  Sha256 hash;
  std::vector<char> block(1 << 20);
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0)
    hash.update(block.data(), static_cast<std::size_t>(in.gcount()));
  if (in.bad()) throw UsageError("{}: read error: {}", path.string(), reason());
  return hash.hex();
}

}  // namespace molen
