// Who may write into a directory: a lease with a fencing token (docs/decisions/0008-files-checkpoints-owners.md).
//
// The directory holds files lease-<token>.json; whoever made the one with the highest token is the owner. A lease is
// taken by creating the file of the next token, which one of several can do. The owner renews its file; who finds one
// that has not been renewed for the owner's period, by its own clock, takes over. No lock of the kernel is used: those
// of network file systems are optional and outlive nobody.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace molen::store {

// Another owner has the directory; the text says who.
class LeaseHeld : public Error {
 public:
  using Error::Error;
};

// Who holds or asks for a lease. `process` is known by its start as well as its number, and both only on the host, boot
// and process namespace where they mean something.
struct Owner {
  std::string host, boot, pid_namespace;
  std::int64_t pid = 0, process_start = 0;
  std::string job;  // of the batch system; empty without one
  static Owner self();
  std::string text() const;  // "process 12 on node7 (Slurm job 99)"
  bool operator==(const Owner&) const = default;
};

struct LeaseOptions {
  double period_s = 60;  // once this owner has not renewed for so long, others take it for dead
  Owner owner = Owner::self();
  std::optional<Owner> dead;  // known to be so: nobody waits for it
  // Called when another's lease must be waited for, once, with what to tell the user.
  std::function<void(const std::string&)> waiting;
};

class Lease {
 public:
  // Throws LeaseHeld where another owner is alive. Returns after at most that owner's period and a little more.
  Lease(fs::path directory, LeaseOptions options);
  // Releases it: who comes next need not wait.
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  std::int64_t token() const { return token_; }
  // Whose place it took because that one was dead; none where it had released the lease, or there was none.
  const std::optional<Owner>& outlived() const { return outlived_; }
  // Throws LeaseHeld, naming the new owner, if another one has taken over.
  void require() const;

 private:
  bool take();
  std::string content(bool released);
  void renew(std::stop_token stop);

  const fs::path directory_;
  const LeaseOptions options_;
  std::int64_t token_ = 0, renewals_ = 0;
  std::optional<Owner> outlived_;
  double since_wall_s_ = 0;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread renewer_;  // last: it ends before what it uses
};

// What is known of the lease of a directory: its owner's text, or "" where nobody holds it.
std::string lease_owner(const fs::path& directory);

}  // namespace molen::store
