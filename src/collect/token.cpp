#include "collect/token.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/file.h"
#include "collect/wire.h"

namespace molen::collect {
namespace {

constexpr std::size_t kLeastTokenBytes = 16;

}  // namespace

std::string read_token(const std::filesystem::path& path) {
  const File file = File::open(path);
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) throw_read_error(path, -errno);
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw UsageError("{}: other users may open this file (mode {:04o}); it holds a secret: chmod 600 {}", path.string(),
                     status.st_mode & 07777, path.string());
  std::string token(kMostTokenBytes + 2, '\0');
  token.resize(file.read_some(token.data(), token.size(), 0));
  if (token.ends_with('\n')) token.pop_back();
  const bool plain = std::ranges::all_of(token, [](char c) { return c > ' ' && c < '\x7f'; });
  if (token.size() < kLeastTokenBytes || token.size() > kMostTokenBytes || !plain)
    throw UsageError(
        "{}: must hold one line of {} to {} printable ASCII characters without spaces, such as that of "
        "`openssl rand -hex 32`",
        path.string(), kLeastTokenBytes, kMostTokenBytes);
  return token;
}

bool same_token(std::string_view a, std::string_view b) {
  // Hashes have one length, so that the comparison does not depend on that of the secret, nor on its bytes.
  const std::string hash_a = sha256_hex(a), hash_b = sha256_hex(b);
  unsigned difference = 0;
  for (std::size_t i = 0; i < hash_a.size(); ++i)
    difference |= static_cast<unsigned char>(hash_a[i]) ^ static_cast<unsigned char>(hash_b[i]);
  return difference == 0;
}

std::string hello_proof(const std::string& token, const std::string& node) {
  return token.empty() ? "" : hmac_sha256_hex(token, "molen energy hello\n" + node);
}

std::string limits_proof(const std::string& token, const std::string& node, const std::string& nonce,
                         const LimitOrder& order) {
  if (token.empty()) return "";
  // Names have no line ends, so no two answers have the same text.
  return hmac_sha256_hex(token, fmt::format("molen energy limits\n{}\n{}\n{}\n{}", node, nonce,
                                            to_json(order.limits).dump(), Json(order.seconds).dump()));
}

}  // namespace molen::collect
