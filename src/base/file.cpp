#include "base/file.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"

namespace molen {
namespace {

std::string read_whole(const File& file, std::int64_t expected, std::int64_t limit) {
  std::string content;
  content.reserve(static_cast<std::size_t>(expected));
  std::vector<char> block(static_cast<std::size_t>(std::clamp<std::int64_t>(expected + 1, 1 << 12, 1 << 20)));
  while (true) {
    const std::size_t got = file.read_some(block.data(), block.size(), static_cast<std::int64_t>(content.size()));
    content.append(block.data(), got);
    if (static_cast<std::int64_t>(content.size()) > limit)
      throw UsageError("{}: more than the limit of {} bytes", file.path().string(), limit);
    if (got < block.size()) return content;
  }
}

std::string in_hexadecimal(const std::array<unsigned char, 32>& digest) {
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

std::string read_file(const fs::path& path, std::int64_t limit) {
  const File file = File::open(path);
  const std::int64_t size = file.size();
  if (size > limit) throw UsageError("{}: {} bytes, more than the limit of {}", path.string(), size, limit);
  return read_whole(file, size, limit);
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  File file = File::temporary_beside(path);
  file.write(content);
  file.publish();
  sync_directory(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void write_file_unsynced(const fs::path& path, std::string_view content) {
  File file = File::temporary_beside(path);
  file.write(content);
  file.publish_unsynced();
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
  return in_hexadecimal(digest);
}

std::string hmac_sha256_hex(std::string_view key, std::string_view text) {
  std::array<unsigned char, 32> digest;
  const void* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), nullptr);
  MOLEN_CHECK(done != nullptr, "HMAC");
  return in_hexadecimal(digest);
}

std::string sha256_hex(std::string_view data) {
  Sha256 hash;
  hash.update(data.data(), data.size());
  return hash.hex();
}

std::string sha256_file(const fs::path& path) {
  const File file = File::open(path);
  Sha256 hash;
  std::vector<char> block(1 << 20);
  for (std::int64_t at = 0;;) {
    const std::size_t got = file.read_some(block.data(), block.size(), at);
    hash.update(block.data(), got);
    at += static_cast<std::int64_t>(got);
    if (got < block.size()) return hash.hex();
  }
}

}  // namespace molen
