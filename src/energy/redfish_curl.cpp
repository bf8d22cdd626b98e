// The controller behind HTTPS. libcurl is loaded at run time, so that molen runs where there is none.
#include <dlfcn.h>
#include <pthread.h>

#include <csignal>
#include <cstdlib>
#include <ctime>

#include "energy/redfish.h"

namespace molen::energy {
namespace {

// The part of libcurl's interface that molen uses. Its binary interface has been the same since 7.16 (libcurl.so.4).
constexpr int kOk = 0;
constexpr int kWriteData = 10001, kUrl = 10002, kProxy = 10004, kCaInfo = 10065, kNetrcFile = 10118,
              kWriteFunction = 20011;
constexpr int kTimeoutMs = 155, kNetrc = 51, kNoSignal = 99, kProtocols = 181;
constexpr int kStatus = 0x200002;                       // of the answer (CURLINFO_RESPONSE_CODE)
constexpr int kNotTrusted = 60, kNoFileOfTrusted = 77;  // CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE
constexpr long kNetrcOptional = 1, kHttpsAlone = 2;

constexpr long kLongestMs = 5000;
constexpr std::size_t kMostBytes = std::size_t{1} << 20U;  // of an answer

struct Answer {
  std::string body;
  bool too_long = false;
};

std::size_t take(const char* data, std::size_t size, std::size_t count, void* to) {
  auto* answer = static_cast<Answer*>(to);
  answer->too_long = answer->body.size() + size * count > kMostBytes;
  if (answer->too_long) return 0;
  answer->body.append(data, size * count);
  return size * count;
}

// Blocks SIGPIPE in this thread: a write to a connection that the controller has closed must not end the process.
// libcurl would ignore the signal by itself, but not with the option kNoSignal, which a program with threads must set.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now{};
    if (!was_pending_) ::sigtimedwait(&pipe_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false;
};

// Returns a variable's value; null where it is absent or empty.
const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

class CurlService : public RedfishService {
 public:
  explicit CurlService(std::string server) : server_(std::move(server)) {}
  ~CurlService() override {
    const WithoutSigpipe no_signal;
    if (curl_ != nullptr) cleanup_(curl_);
  }
  CurlService(const CurlService&) = delete;
  CurlService& operator=(const CurlService&) = delete;

  // Returns why libcurl cannot be used; empty if it can.
  std::string load() {
    // The library stays loaded: it may have started things that end with the process.
    void* handle = nullptr;
    for (const char* file :
         {"libcurl-gnutls.so.4", "libcurl.so.4"})  // the second one gives the reason where both are missing
      if (handle == nullptr) handle = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = ::dlerror();
      return fmt::format("no libcurl, which https needs: {}", why != nullptr ? why : "libcurl.so.4");
    }
    void* (*begin)() = nullptr;
    const auto get = [&](const char* symbol, auto*& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
      return function != nullptr;
    };
    if (!get("curl_easy_init", begin) || !get("curl_easy_setopt", set_) || !get("curl_easy_perform", perform_) ||
        !get("curl_easy_getinfo", info_) || !get("curl_easy_strerror", error_) || !get("curl_easy_cleanup", cleanup_))
      return "libcurl.so.4 lacks functions of libcurl 7.16 or newer";
    curl_ = begin();
    if (curl_ == nullptr) return "libcurl.so.4 does not start";
    const char* const trusted = variable("CURL_CA_BUNDLE");
    const char* const users = variable("NETRC");
    bool set = set_(curl_, kProtocols, kHttpsAlone) == kOk && set_(curl_, kTimeoutMs, kLongestMs) == kOk &&
               set_(curl_, kNoSignal, 1L) == kOk && set_(curl_, kProxy, "") == kOk &&
               set_(curl_, kNetrc, kNetrcOptional) == kOk && set_(curl_, kWriteFunction, &take) == kOk;
    if (trusted != nullptr) set = set && set_(curl_, kCaInfo, trusted) == kOk;
    if (users != nullptr) set = set && set_(curl_, kNetrcFile, users) == kOk;
    return set ? "" : "libcurl.so.4 has no https";
  }

  Result<std::optional<std::string>> get(const std::string& path) override {
    const WithoutSigpipe no_signal;
    Answer answer;
    const std::string url = server_ + path;
    if (set_(curl_, kUrl, url.c_str()) != kOk || set_(curl_, kWriteData, &answer) != kOk)
      return Failure{fmt::format("{}: libcurl takes no such URL", path)};
    const int error = perform_(curl_);
    if (answer.too_long) return Failure{fmt::format("{}: an answer of more than {} bytes", path, kMostBytes)};
    const bool untrusted = error == kNotTrusted || error == kNoFileOfTrusted;
    const char* const trust = untrusted ? "; CURL_CA_BUNDLE names a file of certificates to trust" : "";
    if (error != kOk) return Failure{fmt::format("{}: {}{}", path, error_(error), trust)};
    long status = 0;
    if (info_(curl_, kStatus, &status) == kOk && status == 404) return std::optional<std::string>();
    if (status != 200)
      return Failure{
          fmt::format("{}: HTTP {}{}", path, status,
                      status == 401 ? "; a netrc file, ~/.netrc or that of NETRC, names user and password" : "")};
    return std::optional(std::move(answer.body));
  }

 private:
  std::string server_;
  void* curl_ = nullptr;
  int (*set_)(void*, int, ...) = nullptr;
  int (*perform_)(void*) = nullptr;
  int (*info_)(void*, int, ...) = nullptr;
  const char* (*error_)(int) = nullptr;
  void (*cleanup_)(void*) = nullptr;
};

}  // namespace

Result<std::shared_ptr<RedfishService>> https_redfish(const RedfishUrl& url) {
  auto service = std::make_shared<CurlService>(url.server);
  if (std::string why = service->load(); !why.empty()) return Failure{std::move(why)};
  return std::shared_ptr<RedfishService>(std::move(service));
}

}  // namespace molen::energy
