#include "comm/threads/threads.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "comm/reduce.h"

namespace molen::comm {
namespace {

// The current call of a rank: published before a collective and compared by all ranks.
struct Call {
  std::int64_t count = 0;  // elements of payload, as Traffic counts them
  DType dtype = DType::kU8;
  std::string detail;  // reduction or root
  const void* send = nullptr;
  void* receive = nullptr;
  std::vector<std::int64_t> counts;  // blocks per rank; {color, key} of a split
  bool alike = true;                 // count and counts must be the same on all ranks
  std::string_view kind{};
  std::vector<std::int64_t> offsets{};  // of the blocks of an all_to_all

  bool same_as(const Call& o) const {
    if (kind != o.kind || dtype != o.dtype || detail != o.detail) return false;
    return !alike || (count == o.count && counts == o.counts);
  }
  std::string text() const {
    std::string blocks;
    for (const std::int64_t n : counts) blocks += fmt::format("{}{}", blocks.empty() ? " in blocks of " : ", ", n);
    return fmt::format("{} of {} x {}{}{}", kind, count, name_of(dtype), detail, alike ? blocks : "");
  }
};

// A waiting rank. `text` describes the awaited event. It is empty when the rank waits for copies of other ranks, which
// end whatever fails.
struct Waiter {
  Waiter(int r, std::function<bool()> until, std::function<std::string()> what)
      : rank(r), done(std::move(until)), text(std::move(what)) {}
  int rank;
  std::function<bool()> done;
  std::function<std::string()> text;
  std::condition_variable ready;
};

const char* text_of(Reduce op) {
  return op == Reduce::kSum ? ", sum" : op == Reduce::kMax ? ", max" : ", min";
}

}  // namespace

// State that all groups of a world share, such as the failure that ends them all. `mutex` guards all members.
struct ThreadWorld::Shared {
  std::mutex mutex;
  std::string failure;  // empty: none
  ThreadOptions options;
  int ranks = 1;
  std::list<Waiter> waiters;
  std::vector<int> handles;  // communicators alive per rank; -1: none made yet
  std::vector<int> callers;  // threads per rank that may be in calls at once

  void set_failure(const std::string& reason) {
    if (failure.empty()) failure = reason.empty() ? "aborted" : reason;
    wake();
  }
  void fail(const std::string& reason) {
    const std::lock_guard lock(mutex);
    set_failure(reason);
  }

  // Waits for `done()` or a failure anywhere; `text` describes the awaited event. When all threads that call
  // communicators wait, on all ranks, and the condition of none holds, none ever will: that is reported as a failure.
  template <class Done, class Text>
  void wait(std::unique_lock<std::mutex>& lock, int rank, Done done, Text text) {
    if (done() || !failure.empty()) return;
    Waiter& me = waiters.emplace_back(rank, std::ref(done), std::ref(text));
    find_deadlock();
    me.ready.wait(lock, [&] { return done() || !failure.empty(); });
    leave(me);
  }

  // Waits until other ranks have made their copies: the copies are finite, and no failure may cut them short.
  template <class Done>
  void wait_for_copies(std::unique_lock<std::mutex>& lock, int rank, Done done) {
    if (done()) return;
    Waiter& me = waiters.emplace_back(rank, std::ref(done), nullptr);
    me.ready.wait(lock, done);
    leave(me);
  }

  // Call after any change. Wakes only the ranks that can continue, because each woken thread needs the mutex.
  void wake() {
    for (Waiter& w : waiters)
      if (w.done() || (w.text && !failure.empty())) w.ready.notify_one();
  }

  void leave(const Waiter& waiter) {
    waiters.remove_if([&](const Waiter& w) { return &w == &waiter; });
  }

  void find_deadlock() {
    for (std::size_t r = 0; r < handles.size(); ++r) {
      const auto waiting = std::count_if(waiters.begin(), waiters.end(), [r](const Waiter& w) {
        return static_cast<std::size_t>(w.rank) == r && w.text;
      });
      if (handles[r] != 0 && (callers[r] < 1 || waiting < callers[r])) return;
    }
    std::string all;
    for (const Waiter& w : waiters) {
      if (w.done()) return;
      if (!w.text) continue;
      all += fmt::format("{}rank {}: {}", all.empty() ? "" : "; ", w.rank, w.text());
    }
    if (!all.empty()) set_failure("all ranks wait for each other: " + all);
  }
  void find_deadlock_quietly() noexcept {
    try {
      find_deadlock();
    } catch (...) {  // no memory for the text: the other ranks find out when they leave
    }
  }
};

namespace {

using World = ThreadWorld::Shared;

struct Message {
  const void* data = nullptr;
  std::int64_t count = 0;
  DType dtype{};
  enum { kPosted, kCopying, kTaken } state = kPosted;
  std::int64_t taken = 0;  // bytes copied by the receiver
};

// Bytes that one rank's thread copied between its own memory and another rank's. The owner of the memory that is read
// counts as the sender, whichever thread copies.
struct Moved {
  std::int64_t read = 0, written = 0;
};

// A group of ranks. The world's mutex guards all its state, except `calls` while `moving` > 0. During that time no rank
// writes `calls`, and every published buffer stays valid, because no rank leaves a collective, not even by an
// exception, before all ranks have moved their data. Only its own rank writes a row of `moved`, while `moving` > 0. All
// ranks read `moved` between then and their next collective, in which no rank begins to move before all have arrived.
struct Group {
  Group(std::shared_ptr<World> w, std::vector<int> world_ranks)
      : world(std::move(w)),
        members(std::move(world_ranks)),
        calls(members.size()),
        moved(members.size()),
        gone(members.size(), false) {
    for (std::vector<Moved>& row : moved) row.resize(members.size());
  }
  std::shared_ptr<World> world;
  std::vector<int> members;  // world ranks
  std::vector<Call> calls;
  std::vector<std::vector<Moved>> moved;  // [rank whose thread copies][the other rank], in the current collective
  std::vector<bool> gone;
  std::size_t arrived = 0, moving = 0;
  std::int64_t generation = 0;
  std::map<std::pair<int, int>, Message*> mail;
  std::map<int, std::shared_ptr<Group>> split;  // by color, while a split is in progress
};

class Threads final : public Communicator {
 public:
  // The caller must hold the world's mutex.
  Threads(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {
    int& handles = world().handles[static_cast<std::size_t>(me())];
    handles = std::max(handles, 0) + 1;
  }
  ~Threads() override {
    const std::lock_guard lock(world().mutex);
    group_->gone[static_cast<std::size_t>(rank_)] = true;
    --world().handles[static_cast<std::size_t>(me())];
    world().wake();
    world().find_deadlock_quietly();
  }

  void add_callers(int change) noexcept override {
    const std::lock_guard lock(world().mutex);
    world().callers[static_cast<std::size_t>(me())] += change;
    world().find_deadlock_quietly();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->members.size()); }
  std::string name() const override { return "threads"; }

  void all_reduce(void* data, std::int64_t count, DType dtype, Reduce op) override {
    check_reducible(dtype);
    counted(CallKind::kAllReduce, {count, dtype, text_of(op), data, data, {}}, [&] {
      // Each rank reduces one slice of all buffers and writes it to all of them.
      const std::int64_t first = count * rank_ / size(), last = count * (rank_ + 1) / size();
      const std::int64_t width = size_of(dtype);
      // On the host, small blocks stay in cache between their reduction and the copies. A device takes the whole slice
      // at once.
      const std::int64_t block = here(data) ? std::int64_t{1} << 15 : std::max<std::int64_t>(last - first, 1);
      std::vector<const void*> sources(group_->calls.size());
      for (std::int64_t at = first; at < last; at += block) {
        const std::int64_t n = std::min(block, last - at);
        for (std::size_t r = 0; r < sources.size(); ++r)
          sources[r] = static_cast<const char*>(group_->calls[r].send) + at * width;
        char* mine = static_cast<char*>(data) + at * width;
        reduce(mine, sources, n, dtype, op);
        for (int r = 0; r < size(); ++r) {
          has_read(r, n * width);
          if (r != rank_)
            write(r, static_cast<char*>(group_->calls[static_cast<std::size_t>(r)].receive) + at * width, mine,
                  n * width);
        }
      }
    });
  }

  void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype,
                      Reduce op) override {
    check_reducible(dtype);
    const std::int64_t all = total_of(counts, size()), first = offset_of(counts, rank_);
    counted(CallKind::kReduceScatter, {all, dtype, text_of(op), send, receive, {counts.begin(), counts.end()}}, [&] {
      std::vector<const void*> sources;
      for (const Call& c : group_->calls) sources.push_back(static_cast<const char*>(c.send) + first * size_of(dtype));
      const std::int64_t own = counts[static_cast<std::size_t>(rank_)];
      reduce(receive, sources, own, dtype, op);
      for (int r = 0; r < size(); ++r) has_read(r, own * size_of(dtype));
    });
  }

  void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype) override {
    const std::int64_t all = total_of(counts, size());
    counted(CallKind::kAllGather, {all, dtype, "", send, receive, {counts.begin(), counts.end()}}, [&] {
      for (int r = 0; r < size(); ++r)
        read(r, static_cast<char*>(receive) + offset_of(counts, r) * size_of(dtype),
             group_->calls[static_cast<std::size_t>(r)].send, counts[static_cast<std::size_t>(r)] * size_of(dtype));
    });
  }

  void all_to_all(const void* send, const Blocks& sent, void* receive, const Blocks& received, DType dtype) override {
    const std::int64_t all = sent.total(size());
    received.total(size());
    Call call{all, dtype, "", send, receive, {sent.counts.begin(), sent.counts.end()}, false};
    for (int r = 0; r < size(); ++r) call.offsets.push_back(sent.offset(r));
    counted(CallKind::kAllToAll, std::move(call), [&] {
      for (int r = 0; r < size(); ++r) {
        const Call& from = group_->calls[static_cast<std::size_t>(r)];
        const std::int64_t n = from.counts[static_cast<std::size_t>(rank_)], expected = received.count(r);
        if (n != expected)
          throw Error("all_to_all: rank {} sends {} elements to rank {}, which expects {}", other(r), n, me(),
                      expected);
        if (n == 0) continue;  // the rank may have no buffer
        read(r, static_cast<char*>(receive) + received.offset(r) * size_of(dtype),
             static_cast<const char*>(from.send) + from.offsets[static_cast<std::size_t>(rank_)] * size_of(dtype),
             n * size_of(dtype));
      }
    });
  }

  void broadcast(void* data, std::int64_t count, DType dtype, int root) override {
    if (root < 0 || root >= size()) throw Error("broadcast from rank {} of {}", root, size());
    counted(CallKind::kBroadcast, {count, dtype, fmt::format(" from rank {}", root), data, data, {}}, [&] {
      if (rank_ != root) read(root, data, group_->calls[static_cast<std::size_t>(root)].send, count * size_of(dtype));
    });
  }

  void send(const void* data, std::int64_t count, DType dtype, int to) override {
    check_peer(to);
    begin();
    Message message{data, count, dtype};
    std::unique_lock lock(world().mutex);
    if (!world().failure.empty()) throw Error(world().failure);
    const std::pair<int, int> box{rank_, to};
    MOLEN_CHECK(!group_->mail.contains(box), "rank {} sends from two threads", me());
    group_->mail[box] = &message;
    world().wake();
    world().wait(
        lock, me(), [&] { return message.state == Message::kTaken || left(to); },
        [&] { return fmt::format("send of {} x {} to rank {}", count, name_of(dtype), other(to)); });
    // Waits even after a failure elsewhere, because the receiver reads our buffer until it reports the end of its copy.
    world().wait_for_copies(lock, me(), [&] { return message.state != Message::kCopying; });
    if (message.state != Message::kTaken) {
      group_->mail.erase(box);
      if (world().failure.empty())
        world().set_failure(fmt::format("rank {} has left; rank {} sends to it", other(to), me()));
      throw Error(world().failure);
    }
    note(CallKind::kSend, count, dtype, message.taken, 0);
  }

  void recv(void* data, std::int64_t count, DType dtype, int from) override {
    check_peer(from);
    begin();
    std::unique_lock lock(world().mutex);
    if (!world().failure.empty()) throw Error(world().failure);
    const std::pair<int, int> box{from, rank_};
    world().wait(
        lock, me(), [&] { return group_->mail.contains(box) || left(from); },
        [&] { return fmt::format("receive of {} x {} from rank {}", count, name_of(dtype), other(from)); });
    const auto found = group_->mail.find(box);
    if (found == group_->mail.end()) {
      if (world().failure.empty())
        world().set_failure(fmt::format("rank {} has left; rank {} receives from it", other(from), me()));
      throw Error(world().failure);
    }
    Message& message = *found->second;
    if (message.count != count || message.dtype != dtype) {
      world().set_failure(fmt::format("rank {} sends {} x {} where rank {} receives {} x {}", other(from),
                                      message.count, name_of(message.dtype), me(), count, name_of(dtype)));
      throw Error(world().failure);
    }
    message.state = Message::kCopying;
    lock.unlock();
    const std::int64_t bytes = count * size_of(dtype);
    std::string wrong;
    try {
      copy(data, message.data, bytes);
      settle();
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    lock.lock();
    if (!wrong.empty()) {  // the sender waits for this copy, whatever has failed
      message.state = Message::kPosted;
      world().set_failure(wrong);
      throw Error(wrong);
    }
    group_->mail.erase(box);
    message.taken = bytes;
    message.state = Message::kTaken;
    world().wake();
    note(CallKind::kRecv, count, dtype, 0, bytes);
  }

  void barrier() override {
    collective("barrier", {0, DType::kU8, "", nullptr, nullptr, {}}, [] {});
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    if (color < 0) throw Error("split: color {} of rank {}; colors are not negative", color, me());
    std::unique_ptr<Communicator> made;
    collective("split", {0, DType::kI32, "", nullptr, nullptr, {color, key}, false}, [&] {
      std::vector<std::pair<std::int64_t, int>> members;  // (key, rank)
      for (int r = 0; r < size(); ++r) {
        const auto& theirs = group_->calls[static_cast<std::size_t>(r)].counts;
        if (theirs[0] == color) members.emplace_back(theirs[1], r);
      }
      std::sort(members.begin(), members.end());
      std::vector<int> ranks;
      int position = 0;
      for (const auto& [k, r] : members) {
        if (r == rank_) position = static_cast<int>(ranks.size());
        ranks.push_back(other(r));
      }
      const std::lock_guard lock(world().mutex);
      auto& group = group_->split[color];
      if (!group) group = std::make_shared<Group>(group_->world, ranks);
      made = std::make_unique<Threads>(group, position);
    });
    // All ranks have taken their group, and none can begin another split before we do.
    const std::lock_guard lock(world().mutex);
    group_->split.erase(color);
    return made;
  }

  void abort(const std::string& reason) noexcept override {
    try {
      world().fail(reason);
    } catch (...) {  // no memory for the text: nothing more can be done here
    }
  }
  Traffic traffic_of(CallKind kind) const override { return traffic_[kind]; }

 private:
  World& world() const { return *group_->world; }
  int other(int rank) const { return group_->members[static_cast<std::size_t>(rank)]; }
  int me() const { return other(rank_); }
  bool left(int rank) const { return group_->gone[static_cast<std::size_t>(rank)]; }
  // Returns whether `data` is host memory.
  bool here(const void* data) const {
    const Memory* memory = world().options.memory;
    return !memory || !memory->holds(data);
  }
  void copy(void* to, const void* from, std::int64_t bytes) const {
    if (to == from || bytes == 0) return;
    if (here(to) && here(from))
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
    else
      world().options.memory->copy(to, from, bytes);
  }
  void reduce(void* out, std::span<const void* const> sources, std::int64_t count, DType dtype, Reduce op) const {
    if (count == 0) return;
    const bool host = here(out);
    for (const void* source : sources)
      if (here(source) != host) throw Error("ranks reduce what lies in the memories of host and device");
    if (host)
      combine(out, sources, count, dtype, op);
    else
      world().options.memory->combine(out, sources, count, dtype, op);
  }
  // Copies in progress must end before other ranks may free their buffers, even when an exception cut the sequence
  // short.
  void settle_after_failure() const noexcept {
    try {
      settle();
    } catch (...) {  // a device that fails has stopped copying
    }
  }
  // Waits until a device has completed the operations that this thread began on it.
  void settle() const {
    if (Memory* memory = world().options.memory) memory->wait();
  }
  void check_peer(int peer) const {
    if (peer < 0 || peer >= size() || peer == rank_) throw Error("rank {} of {} talks to rank {}", rank_, size(), peer);
  }
  void note(CallKind kind, std::int64_t count, DType dtype, std::int64_t sent, std::int64_t received) {
    traffic_[kind] += {1, count * size_of(dtype), sent, received};
  }

  // Counts copies between this rank's memory and rank `other`'s inside a collective.
  void has_read(int other, std::int64_t bytes) {
    if (other != rank_) moved_by(rank_, other).read += bytes;
  }
  void read(int other, void* to, const void* from, std::int64_t bytes) {
    copy(to, from, bytes);
    has_read(other, bytes);
  }
  void write(int other, void* to, const void* from, std::int64_t bytes) {
    copy(to, from, bytes);
    moved_by(rank_, other).written += bytes;
  }
  Moved& moved_by(int rank, int other) {
    return group_->moved[static_cast<std::size_t>(rank)][static_cast<std::size_t>(other)];
  }
  void note_collective(CallKind kind, std::int64_t count, DType dtype) {
    std::int64_t sent = 0, received = 0;
    for (int r = 0; r < size(); ++r) {
      const Moved &mine = moved_by(rank_, r), &theirs = moved_by(r, rank_);
      sent += mine.written + theirs.read;
      received += mine.read + theirs.written;
    }
    note(kind, count, dtype, sent, received);
  }

  // Injects the configured delay and failure.
  void begin() {
    const ThreadOptions& o = world().options;
    if (me() == o.fail_rank && call_ == o.fail_call) {
      const std::string reason = fmt::format("rank {} fails at its call {} (injected)", me(), call_);
      world().fail(reason);
      throw Error(reason);
    }
    if (o.delay_us > 0) {
      const std::uint64_t key = stream_key(o.seed, "delay") + static_cast<std::uint64_t>(me());
      const double share = uniform_at(key, static_cast<std::uint64_t>(call_));
      std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(share * o.delay_us)));
    }
    ++call_;
  }

  // Runs a collective that moves data and counts its traffic.
  template <class Move>
  void counted(CallKind kind, Call call, Move move) {
    const std::int64_t count = call.count;
    const DType dtype = call.dtype;
    collective(name_of(kind), std::move(call), move);
    note_collective(kind, count, dtype);
  }

  // Runs a collective: publishes `call`, waits for all ranks, compares their calls, runs `move`, and waits again for
  // all.
  template <class Move>
  void collective(std::string_view kind, Call call, Move move) {
    begin();
    call.kind = kind;
    enter(std::move(call));
    std::string wrong;
    std::vector<Moved>& row = group_->moved[static_cast<std::size_t>(rank_)];
    std::fill(row.begin(), row.end(), Moved{});
    try {
      compare();
      move();
      settle();
    } catch (const std::exception& error) {
      wrong = error.what();
      settle_after_failure();
    }
    std::unique_lock lock(world().mutex);
    if (!wrong.empty()) world().set_failure(wrong);
    if (--group_->moving == 0) world().wake();
    world().wait_for_copies(lock, me(), [&] { return group_->moving == 0; });
    if (!wrong.empty()) throw Error(wrong);
    if (!world().failure.empty()) throw Error(world().failure);
  }

  // Waits until all ranks have arrived. Throws when one cannot arrive any more.
  void enter(Call call) {
    std::unique_lock lock(world().mutex);
    if (!world().failure.empty()) throw Error(world().failure);
    Call& mine = group_->calls[static_cast<std::size_t>(rank_)];
    mine = std::move(call);
    const std::int64_t generation = group_->generation;
    if (++group_->arrived == group_->members.size()) {
      group_->arrived = 0;
      group_->moving = group_->members.size();
      ++group_->generation;
      world().wake();
      return;
    }
    const auto first_gone = [&] { return std::find(group_->gone.begin(), group_->gone.end(), true); };
    world().wait(
        lock, me(), [&] { return group_->generation != generation || first_gone() != group_->gone.end(); },
        [&] { return mine.text(); });
    if (group_->generation != generation) return;
    if (world().failure.empty())
      world().set_failure(fmt::format("rank {} has left while rank {} waits in {}",
                                      other(static_cast<int>(first_gone() - group_->gone.begin())), me(), mine.text()));
    throw Error(world().failure);
  }

  void compare() const {
    const Call& mine = group_->calls[static_cast<std::size_t>(rank_)];
    for (int r = 0; r < size(); ++r)
      if (const Call& theirs = group_->calls[static_cast<std::size_t>(r)]; !theirs.same_as(mine))
        throw Error("ranks call different collectives: rank {}: {}; rank {}: {}", me(), mine.text(), other(r),
                    theirs.text());
  }

  std::shared_ptr<Group> group_;
  int rank_;
  std::int64_t call_ = 0;
  TrafficByCall traffic_{{0, 0, 0, 0}};
};

// The world group; the world keeps it so that every rank finds it.
struct WorldGroup : World {
  std::shared_ptr<Group> group;
};

}  // namespace

ThreadWorld::ThreadWorld(int ranks, ThreadOptions options) {
  MOLEN_CHECK(ranks >= 1, "a world of {} ranks", ranks);
  auto world = std::make_shared<WorldGroup>();
  world->options = options;
  world->ranks = ranks;
  world->handles.assign(static_cast<std::size_t>(ranks), -1);
  world->callers.assign(static_cast<std::size_t>(ranks), 1);
  std::vector<int> members(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) members[static_cast<std::size_t>(r)] = r;
  // The group points back to the world; ~ThreadWorld breaks the cycle.
  world->group = std::make_shared<Group>(world, members);
  shared_ = world;
}
ThreadWorld::~ThreadWorld() {
  const std::lock_guard lock(shared_->mutex);
  static_cast<WorldGroup&>(*shared_).group.reset();
}

std::unique_ptr<Communicator> ThreadWorld::communicator(int rank) {
  MOLEN_CHECK(rank >= 0 && rank < shared_->ranks, "rank {} of {}", rank, shared_->ranks);
  const std::lock_guard lock(shared_->mutex);
  MOLEN_CHECK(shared_->handles[static_cast<std::size_t>(rank)] < 0, "a second communicator for rank {}", rank);
  return std::make_unique<Threads>(static_cast<WorldGroup&>(*shared_).group, rank);
}

}  // namespace molen::comm
