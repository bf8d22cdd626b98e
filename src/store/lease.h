// The exclusive right to write into a directory: a lease with a fencing token
// (docs/decisions/0008-files-checkpoints-owners.md).
//
// The directory holds files lease-<token>.json; the maker of the file with the highest token is the owner. A process
// takes a lease by creating the file of the next token, which only one process can do. The owner renews its file.
// Another process takes over when, by its own clock, the file was not renewed for the owner's period. Kernel locks are
// not used: network file systems need not support them, and they do not outlive their process.
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

// Another owner has the directory; the text names it.
class LeaseHeld : public Error {
 public:
  using Error::Error;
};

// A process that holds or requests a lease. Its number and start time identify it, but only within one host, boot and
// process namespace.
struct Owner {
  std::string host, boot, pid_namespace;
  std::int64_t pid = 0, process_start = 0;
  std::string job;  // of the batch system; empty without one
  static Owner self();
  std::string text() const;  // "process 12 on node7 (Slurm job 99)"
  bool operator==(const Owner&) const = default;
};

// The life of the process of an owner, as far as `self` can tell: kUnknown for one of another host, boot or
// process namespace.
enum class Life { kAlive, kDead, kUnknown };
Life life_of(const Owner& owner, const Owner& self);

struct LeaseOptions {
  double period_s = 60;  // without a renewal for this long, others regard this owner as dead
  Owner owner = Owner::self();
  std::optional<Owner> dead;                                     // an owner known to be dead: nobody waits for it
  std::string advice = "give this run another name (run.name)";  // for who is refused: what else to do than to wait
  // Called once, with a text for the user, when this process must wait for another's lease.
  std::function<void(const std::string&)> waiting;
};

class Lease {
 public:
  // Takes the lease. Throws LeaseHeld when another owner is alive. Waits at most for that owner's period and a little
  // more.
  Lease(fs::path directory, LeaseOptions options);
  // Releases the lease, so that the next owner need not wait.
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  std::int64_t token() const { return token_; }
  // Returns the dead owner whose lease this one took over; nullopt when the last owner had released it, or there was
  // none.
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
  std::jthread renewer_;  // last member: destroyed first, before the members that it uses
};

// Returns the text of the owner of a directory's lease, or "" when nobody holds it.
std::string lease_owner(const fs::path& directory);

}  // namespace molen::store
