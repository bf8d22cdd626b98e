#include "comm/threads/threads.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "comm/reduce.h"

namespace molen::comm {
namespace {

// What a rank is doing: published before a collective, compared by all.
struct Call {
  std::string kind;
  std::int64_t count = 0;
  DType dtype = DType::kU8;
  int detail = 0;                      // reduction, root, ...
  const void* send = nullptr;
  void* receive = nullptr;
  std::vector<std::int64_t> counts;    // blocks
  bool same_as(const Call& o) const { return kind == o.kind && count == o.count && dtype == o.dtype && detail == o.detail; }
  std::string text() const { return fmt::format("{} of {} x {}", kind, count, name_of(dtype)); }
};

}  // namespace

// The world: one failure ends all groups.
struct ThreadWorld::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;                 // empty: none
  ThreadOptions options;
  int ranks = 1;

  void fail(const std::string& reason) {
    const std::lock_guard lock(mutex);
    if (failure.empty()) failure = reason;
    changed.notify_all();
  }
};

namespace {

using World = ThreadWorld::Shared;

struct Message {
  const void* data = nullptr;
  std::int64_t count = 0;
  DType dtype{};
  bool taken = false;
};

// A group of ranks. All its state is guarded by the world's mutex; data moves outside of it, between two meetings.
struct Group {
  Group(std::shared_ptr<World> w, int n) : world(std::move(w)), size(n), calls(static_cast<std::size_t>(n)), gone(static_cast<std::size_t>(n), false) {}
  std::shared_ptr<World> world;
  int size;
  std::vector<Call> calls;
  std::vector<bool> gone;
  int arrived = 0;
  std::int64_t generation = 0;
  std::map<std::pair<int, int>, Message*> mail;
  std::map<int, std::shared_ptr<Group>> split;   // by color, while a split is under way
};

class Threads final : public Communicator {
 public:
  Threads(std::shared_ptr<Group> group, int rank, int world_rank) : group_(std::move(group)), rank_(rank), world_rank_(world_rank) {}
  ~Threads() override {
    const std::lock_guard lock(group_->world->mutex);
    group_->gone[static_cast<std::size_t>(rank_)] = true;
    group_->world->changed.notify_all();
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size; }
  std::string name() const override { return "threads"; }

  void all_reduce(void* data, std::int64_t count, DType dtype, Reduce op) override {
    enter({"all_reduce", count, dtype, static_cast<int>(op), data, data, {}});
    // Each rank reduces one slice of all buffers and writes it to all of them.
    const std::int64_t first = count * rank_ / size(), last = count * (rank_ + 1) / size();
    const std::int64_t width = size_of(dtype);
    constexpr std::int64_t kBlock = 1 << 15;   // keeps the reduced block in cache while it is copied out
    for (std::int64_t at = first; at < last; at += kBlock) {
      const std::int64_t n = std::min(kBlock, last - at);
      std::vector<const void*> sources;
      for (const Call& c : group_->calls) sources.push_back(static_cast<const char*>(c.send) + at * width);
      void* mine = static_cast<char*>(data) + at * width;
      combine(mine, sources, n, dtype, op);
      for (const Call& c : group_->calls)
        if (c.receive != data) std::memcpy(static_cast<char*>(c.receive) + at * width, mine, static_cast<std::size_t>(n * width));
    }
    leave();
  }

  void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype, Reduce op) override {
    const std::int64_t first = offset_of(counts, rank_);
    enter({"reduce_scatter", total(counts), dtype, static_cast<int>(op), send, receive, {counts.begin(), counts.end()}});
    std::vector<const void*> sources;
    for (const Call& c : group_->calls) sources.push_back(static_cast<const char*>(c.send) + first * size_of(dtype));
    combine(receive, sources, counts[static_cast<std::size_t>(rank_)], dtype, op);
    leave();
  }

  void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype) override {
    enter({"all_gather", total(counts), dtype, 0, send, receive, {counts.begin(), counts.end()}});
    for (int r = 0; r < size(); ++r) {
      void* target = static_cast<char*>(receive) + offset_of(counts, r) * size_of(dtype);
      const void* source = group_->calls[static_cast<std::size_t>(r)].send;
      const std::int64_t n = counts[static_cast<std::size_t>(r)];
      if (source != target && n > 0) std::memcpy(target, source, static_cast<std::size_t>(n * size_of(dtype)));
    }
    leave();
  }

  void all_to_all(const void* send, std::span<const std::int64_t> counts_send, void* receive, std::span<const std::int64_t> counts_receive,
                  DType dtype) override {
    total(counts_receive);
    enter({"all_to_all", 0, dtype, 0, send, receive, {counts_send.begin(), counts_send.end()}});
    std::string wrong;
    for (int r = 0; r < size(); ++r) {
      const Call& from = group_->calls[static_cast<std::size_t>(r)];
      const std::int64_t n = from.counts.at(static_cast<std::size_t>(rank_));
      if (n != counts_receive[static_cast<std::size_t>(r)]) {
        wrong = fmt::format("all_to_all: rank {} sends {} elements to rank {}, which expects {}", r, n, rank_, counts_receive[static_cast<std::size_t>(r)]);
        break;
      }
      const void* source = static_cast<const char*>(from.send) + offset_of(from.counts, rank_) * size_of(dtype);
      if (n > 0) std::memcpy(static_cast<char*>(receive) + offset_of(counts_receive, r) * size_of(dtype), source, static_cast<std::size_t>(n * size_of(dtype)));
    }
    if (!wrong.empty()) fail(wrong);
    leave();
  }

  void broadcast(void* data, std::int64_t count, DType dtype, int root) override {
    if (root < 0 || root >= size()) throw Error("broadcast from rank {} of {}", root, size());
    enter({"broadcast", count, dtype, root, data, data, {}});
    const void* source = group_->calls[static_cast<std::size_t>(root)].send;
    if (rank_ != root && count > 0) std::memcpy(data, source, static_cast<std::size_t>(count * size_of(dtype)));
    leave();
  }

  void send(const void* data, std::int64_t count, DType dtype, int to) override {
    check_peer(to);
    begin(count, dtype);
    Message message{data, count, dtype, false};
    std::unique_lock lock(group_->world->mutex);
    wait(lock, [&] { return !group_->mail.contains({rank_, to}); }, to, "send");
    group_->mail[{rank_, to}] = &message;
    group_->world->changed.notify_all();
    wait(lock, [&] { return message.taken; }, to, "send");
  }

  void recv(void* data, std::int64_t count, DType dtype, int from) override {
    check_peer(from);
    begin(count, dtype);
    std::unique_lock lock(group_->world->mutex);
    wait(lock, [&] { return group_->mail.contains({from, rank_}); }, from, "receive");
    Message* message = group_->mail.at({from, rank_});
    if (message->count != count || message->dtype != dtype) {
      lock.unlock();
      fail(fmt::format("rank {} sends {} x {} where rank {} receives {} x {}", from, message->count, name_of(message->dtype), rank_, count, name_of(dtype)));
    }
    // The sender waits for `taken`, so its buffer stays.
    lock.unlock();
    if (count > 0) std::memcpy(data, message->data, static_cast<std::size_t>(count * size_of(dtype)));
    lock.lock();
    group_->mail.erase({from, rank_});
    message->taken = true;
    group_->world->changed.notify_all();
  }

  void barrier() override {
    enter({"barrier", 0, DType::kU8, 0, nullptr, nullptr, {}});
    leave();
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    enter({"split", 0, DType::kI32, 0, nullptr, nullptr, {color, key}});
    std::vector<std::pair<std::int64_t, int>> members;   // (key, rank)
    for (int r = 0; r < size(); ++r)
      if (group_->calls[static_cast<std::size_t>(r)].counts[0] == color) members.emplace_back(group_->calls[static_cast<std::size_t>(r)].counts[1], r);
    std::sort(members.begin(), members.end());
    int position = 0;
    for (std::size_t i = 0; i < members.size(); ++i)
      if (members[i].second == rank_) position = static_cast<int>(i);
    std::shared_ptr<Group> mine;
    {
      const std::lock_guard lock(group_->world->mutex);
      auto& made = group_->split[color];
      if (!made) made = std::make_shared<Group>(group_->world, static_cast<int>(members.size()));
      mine = made;
    }
    leave();
    {
      const std::lock_guard lock(group_->world->mutex);
      group_->split.erase(color);   // all have taken theirs: `leave` met
    }
    return std::make_unique<Threads>(mine, position, world_rank_);
  }

  void abort(const std::string& reason) noexcept override {
    try {
      group_->world->fail(reason);
    } catch (...) {  // out of memory for the text: nothing more can be done here
    }
  }
  Traffic traffic() const override { return traffic_; }

 private:
  static std::int64_t offset_of(std::span<const std::int64_t> counts, int rank) {
    std::int64_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += counts[static_cast<std::size_t>(r)];
    return sum;
  }
  std::int64_t total(std::span<const std::int64_t> counts) const {
    if (static_cast<int>(counts.size()) != size()) throw Error("{} counts for {} ranks", counts.size(), size());
    return offset_of(counts, size());
  }
  void check_peer(int peer) const {
    if (peer < 0 || peer >= size() || peer == rank_) throw Error("rank {} of {} talks to rank {}", rank_, size(), peer);
  }

  [[noreturn]] void fail(const std::string& reason) {
    group_->world->fail(reason);
    throw Error(reason);
  }

  // Counting, and the injected trouble.
  void begin(std::int64_t count, DType dtype) {
    const ThreadOptions& o = group_->world->options;
    if (world_rank_ == o.fail_rank && call_ == o.fail_call) fail(fmt::format("rank {} fails at its call {} (injected)", world_rank_, call_));
    if (o.delay_us > 0) {
      const double share = uniform_at(stream_key(o.seed, "delay") + static_cast<std::uint64_t>(world_rank_), static_cast<std::uint64_t>(call_));
      std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(share * o.delay_us)));
    }
    ++call_;
    ++traffic_.calls;
    traffic_.bytes += count * size_of(dtype);
  }

  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready, int peer, const char* what) {
    World& world = *group_->world;
    world.changed.wait(lock, [&] { return ready() || !world.failure.empty() || (peer >= 0 && group_->gone[static_cast<std::size_t>(peer)]); });
    if (ready()) return;
    if (!world.failure.empty()) throw Error(world.failure);
    throw Error("{}: rank {} has left", what, peer);
  }

  // All ranks have arrived, or one never will.
  void meet() {
    std::unique_lock lock(group_->world->mutex);
    meet(lock);
  }
  void meet(std::unique_lock<std::mutex>& lock) {
    World& world = *group_->world;
    if (!world.failure.empty()) throw Error(world.failure);
    const std::int64_t generation = group_->generation;
    if (++group_->arrived == group_->size) {
      group_->arrived = 0;
      ++group_->generation;
      world.changed.notify_all();
      return;
    }
    const auto left = [&] { return std::find(group_->gone.begin(), group_->gone.end(), true) - group_->gone.begin(); };
    world.changed.wait(lock, [&] { return group_->generation != generation || !world.failure.empty() || left() < group_->size; });
    if (group_->generation != generation) return;
    if (!world.failure.empty()) throw Error(world.failure);
    throw Error("rank {} has left while others wait for it", left());
  }

  void enter(Call call) {
    begin(call.count, call.dtype);
    {
      std::unique_lock lock(group_->world->mutex);
      group_->calls[static_cast<std::size_t>(rank_)] = std::move(call);
      meet(lock);
    }
    const Call& mine = group_->calls[static_cast<std::size_t>(rank_)];
    for (int r = 0; r < size(); ++r)
      if (const Call& other = group_->calls[static_cast<std::size_t>(r)]; !other.same_as(mine))
        fail(fmt::format("ranks call different collectives: rank {} {}, rank {} {}", rank_, mine.text(), r, other.text()));
  }
  void leave() { meet(); }

  std::shared_ptr<Group> group_;
  int rank_, world_rank_;
  std::int64_t call_ = 0;
  Traffic traffic_;
};

// The world group, kept by the world so that every rank finds it.
struct WorldGroup : World {
  std::shared_ptr<Group> group;
};

}  // namespace

ThreadWorld::ThreadWorld(int ranks, ThreadOptions options) {
  MOLEN_CHECK(ranks >= 1, "a world of {} ranks", ranks);
  auto world = std::make_shared<WorldGroup>();
  world->options = options;
  world->ranks = ranks;
  // The group points back at the world; ~ThreadWorld cuts the circle.
  world->group = std::make_shared<Group>(world, ranks);
  shared_ = world;
}
ThreadWorld::~ThreadWorld() {
  const std::lock_guard lock(shared_->mutex);
  static_cast<WorldGroup&>(*shared_).group.reset();
}

std::unique_ptr<Communicator> ThreadWorld::communicator(int rank) {
  MOLEN_CHECK(rank >= 0 && rank < shared_->ranks, "rank {} of {}", rank, shared_->ranks);
  return std::make_unique<Threads>(static_cast<WorldGroup&>(*shared_).group, rank, rank);
}

}  // namespace molen::comm
