// A library with NCCL's functions between threads of one process, on the fake runtime's streams. It guarantees only
// what NCCL guarantees. A message must have the size that its receiver requests; calls return before their work is
// done; sums of bf16 and fp16 round at each rank; a maximum drops a NaN; an abort reaches only the rank that calls it;
// a communicator refuses a call while it is in progress. FAKE_NO_SPLIT leaves out ncclCommSplit (NCCL before 2.18),
// FAKE_NO_SEND leaves out ncclSend.
#include "comm/nccl/fake/fake.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

enum { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7 };

struct Id {
  char bytes[128];
};

struct Op {
  std::string kind;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  int type = 1, op = 0, peer = -1;  // peer: root, or the other end
  bool same_as(const Op& o) const {
    return kind == o.kind && count == o.count && type == o.type && op == o.op && peer == o.peer;
  }
};

struct Post {
  const Op* op;
  bool taken = false;
};

struct FakeComm;

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0, finalized = 0, arrived = 0, splitting = 0;
  long generation = 0;
  bool dead = false;  // a rank has gone: no operation that needs all ranks will complete
  int broken = 0;     // ranks call different collectives
  std::set<int> devices;
  std::vector<const Op*> slots;
  std::vector<FakeComm*> comms;
  std::map<std::pair<int, int>, std::deque<Post*>> mail;
};

struct FakeComm {
  std::shared_ptr<World> world;
  int rank = 0, polls = 0, async = 0, running = 0;
  bool aborted = false, finalizing = false, blocking = false;
  // A split in progress: the place for the new communicator, the arguments, the result.
  FakeComm** wanted = nullptr;
  int color = 0, key = 0;
  FakeComm* made = nullptr;
  std::vector<Op> pending;
  void* stream = nullptr;
};

std::mutex controls;
int version = 22703, polls = 2, alive = 0, next_id = 0;
std::map<std::string, int> calls;
struct Fault {
  std::string name;
  int result, rank;
};
std::vector<Fault> faults;
Fault async_fault{"", 0, -2};
std::map<std::string, std::weak_ptr<World>> worlds;

struct Batch {
  FakeComm* comm;
  void* stream;
  std::vector<Op> ops;
};
thread_local int depth = 0;
thread_local std::vector<Batch> batches;

// Counts the call; returns the result that the test set.
int enter(const char* name, int rank) {
  const std::lock_guard lock(controls);
  ++calls[name];
  for (const Fault& f : faults)
    if (f.name == name && (f.rank == -1 || rank == -1 || f.rank == rank)) return f.result;
  return kSuccess;
}

std::size_t width_of(int type) {
  constexpr std::size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return widths[type];
}

template <class T>
T apply(T a, T b, int op) {
  if constexpr (std::is_floating_point_v<T>) {
    return op == 0 ? a + b : op == 2 ? std::fmax(a, b) : std::fmin(a, b);
  } else {
    return static_cast<T>(op == 0 ? a + b : op == 2 ? std::max(a, b) : std::min(a, b));
  }
}
template <class T>
void add(void* into, const void* from, std::size_t n, int op) {
  auto* a = static_cast<T*>(into);
  const auto* b = static_cast<const T*>(from);
  for (std::size_t i = 0; i < n; ++i) a[i] = apply(a[i], b[i], op);
}
void add_bf16(void* into, const void* from, std::size_t n, int op) {
  const auto wide = [](std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); };
  auto* a = static_cast<std::uint16_t*>(into);
  const auto* b = static_cast<const std::uint16_t*>(from);
  for (std::size_t i = 0; i < n; ++i) {
    const float x = apply(wide(a[i]), wide(b[i]), op);
    const auto bits = std::bit_cast<std::uint32_t>(x);
    a[i] = std::isnan(x) ? 0x7fff : static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}
void add_f16(void* into, const void* from, std::size_t n, int op) {
  auto* a = static_cast<_Float16*>(into);
  const auto* b = static_cast<const _Float16*>(from);
  for (std::size_t i = 0; i < n; ++i)
    a[i] = static_cast<_Float16>(apply(static_cast<float>(a[i]), static_cast<float>(b[i]), op));
}
void reduce_into(void* into, const void* from, std::size_t n, int type, int op) {
  switch (type) {
    case 1:
      return add<std::uint8_t>(into, from, n, op);
    case 2:
      return add<std::int32_t>(into, from, n, op);
    case 4:
      return add<std::int64_t>(into, from, n, op);
    case 6:
      return add_f16(into, from, n, op);
    case 7:
      return add<float>(into, from, n, op);
    case 8:
      return add<double>(into, from, n, op);
    case 9:
      return add_bf16(into, from, n, op);
    default:
      std::abort();
  }
}

using Bytes = std::vector<char>;
Bytes bytes_of(const void* data, std::size_t n) {
  const auto* p = static_cast<const char*>(data);
  return Bytes(p, p + n);
}
void put(void* to, const Bytes& from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

// Performs all ranks' operation at once, with the world's mutex held. Reads all inputs before it writes anything.
void perform(World& w) {
  const Op& first = *w.slots[0];
  const std::size_t n = first.count * width_of(first.type);
  const auto size = static_cast<std::size_t>(w.size);
  const auto sum = [&](std::size_t offset, std::size_t count) {
    Bytes total = bytes_of(static_cast<const char*>(w.slots[0]->send) + offset, count * width_of(first.type));
    for (std::size_t r = 1; r < size; ++r)
      reduce_into(total.data(), static_cast<const char*>(w.slots[r]->send) + offset, count, first.type, first.op);
    return total;
  };
  if (first.kind == "ncclAllReduce") {
    const Bytes total = sum(0, first.count);
    for (const Op* op : w.slots) put(op->receive, total);
  } else if (first.kind == "ncclReduce") {
    put(w.slots[static_cast<std::size_t>(first.peer)]->receive, sum(0, first.count));
  } else if (first.kind == "ncclReduceScatter") {
    std::vector<Bytes> blocks;
    for (std::size_t r = 0; r < size; ++r) blocks.push_back(sum(r * n, first.count));
    for (std::size_t r = 0; r < size; ++r) put(w.slots[r]->receive, blocks[r]);
  } else if (first.kind == "ncclAllGather") {
    Bytes all;
    for (const Op* op : w.slots) {
      const Bytes part = bytes_of(op->send, n);
      all.insert(all.end(), part.begin(), part.end());
    }
    for (const Op* op : w.slots) put(op->receive, all);
  } else {
    const Bytes data = bytes_of(w.slots[static_cast<std::size_t>(first.peer)]->send, n);
    for (const Op* op : w.slots) put(op->receive, data);
  }
}

// Waits on the stream's thread until `done`; returns false if the communicator was aborted first.
template <class Done>
bool wait(std::unique_lock<std::mutex>& lock, FakeComm& c, Done done) {
  c.world->changed.wait(lock, [&] { return c.aborted || done(); });
  return !c.aborted;
}

bool collective(std::unique_lock<std::mutex>& lock, FakeComm& c, const Op& op) {
  World& w = *c.world;
  if (w.dead || w.broken != 0) return wait(lock, c, [] { return false; });
  w.slots[static_cast<std::size_t>(c.rank)] = &op;
  const long generation = w.generation;
  if (++w.arrived < w.size) {
    if (wait(lock, c, [&] { return w.generation != generation; })) return true;
    --w.arrived;
    return false;
  }
  w.arrived = 0;
  for (const Op* other : w.slots)
    if (!other->same_as(op)) w.broken = kInvalidUsage;
  if (w.broken != 0) return wait(lock, c, [] { return false; });
  perform(w);
  ++w.generation;
  w.changed.notify_all();
  return true;
}

void execute(FakeComm& c, const std::vector<Op>& ops) {
  World& w = *c.world;
  std::unique_lock lock(w.mutex);
  std::deque<Post> posts;
  bool whole = !c.aborted;
  for (const Op& op : ops)
    if (whole && op.kind == "ncclSend") {
      posts.push_back({&op});
      w.mail[{c.rank, op.peer}].push_back(&posts.back());
      w.changed.notify_all();
    }
  for (const Op& op : ops) {
    if (!whole) break;
    if (op.kind == "ncclRecv") {
      auto& box = w.mail[{op.peer, c.rank}];
      whole = wait(lock, c, [&] { return !box.empty(); });
      if (!whole) break;
      const Op& sent = *box.front()->op;
      if (op.count != sent.count || op.type != sent.type) {
        w.broken = kInvalidUsage;
        w.changed.notify_all();
        whole = wait(lock, c, [] { return false; });
        break;
      }
      std::memcpy(op.receive, sent.send, op.count * width_of(op.type));
      box.front()->taken = true;
      box.pop_front();
      w.changed.notify_all();
    } else if (op.kind != "ncclSend") {
      whole = collective(lock, c, op);
    }
  }
  for (Post& post : posts) {
    if (whole) whole = wait(lock, c, [&] { return post.taken; });
    if (!post.taken) std::erase(w.mail[{c.rank, post.op->peer}], &post);
  }
  --c.running;
  w.changed.notify_all();
}

struct Task {
  FakeComm* comm;
  std::vector<Op> ops;
};

// Requires the world's mutex.
void submit(FakeComm& c) {
  ++c.running;
  fake_runtime_enqueue(
      c.stream,
      [](void* argument) {
        const std::unique_ptr<Task> task(static_cast<Task*>(argument));
        execute(*task->comm, task->ops);
      },
      new Task{&c, std::exchange(c.pending, {})});
}

int hand_over(const Batch& batch) {
  FakeComm& c = *batch.comm;
  int wanted_polls;
  {
    const std::lock_guard lock(controls);
    wanted_polls = polls;
    if (async_fault.rank == c.rank) {
      c.async = async_fault.result;
      async_fault.rank = -2;
      return kInProgress;
    }
  }
  const std::lock_guard lock(c.world->mutex);
  if (c.polls > 0 || c.wanted != nullptr || c.finalizing) return kInvalidUsage;
  c.pending = batch.ops;
  c.stream = batch.stream;
  c.polls = wanted_polls;
  if (c.polls > 0) return kInProgress;
  submit(c);
  return kSuccess;
}

int ask(const char* name, void* comm, void* stream, Op op) {
  auto& c = *static_cast<FakeComm*>(comm);
  if (const int error = enter(name, c.rank); error != kSuccess) return error;
  op.kind = name;
  if (depth == 0) return hand_over({&c, stream, {op}});
  for (Batch& b : batches)
    if (b.comm == &c) return b.ops.push_back(op), kSuccess;
  batches.push_back({&c, stream, {op}});
  return kSuccess;
}

FakeComm* make(std::shared_ptr<World> world, int rank, int wanted_polls) {
  auto* c = new FakeComm;
  c->world = std::move(world);
  c->rank = rank;
  c->polls = wanted_polls;
  c->world->comms[static_cast<std::size_t>(rank)] = c;
  ++c->world->joined;
  const std::lock_guard lock(controls);
  ++alive;
  return c;
}
std::shared_ptr<World> world_of(int size) {
  auto world = std::make_shared<World>();
  world->size = size;
  world->slots.resize(static_cast<std::size_t>(size));
  world->comms.resize(static_cast<std::size_t>(size));
  return world;
}

// Makes the communicator of every color. Called once all ranks have called split.
[[maybe_unused]] void divide(World& w, int wanted_polls) {
  std::map<int, std::vector<FakeComm*>> colors;
  for (FakeComm* c : w.comms) colors[c->color].push_back(c);
  for (auto& [color, members] : colors) {
    std::stable_sort(members.begin(), members.end(), [](auto* a, auto* b) { return a->key < b->key; });
    const auto world = world_of(static_cast<int>(members.size()));
    for (std::size_t i = 0; i < members.size(); ++i) members[i]->made = make(world, static_cast<int>(i), wanted_polls);
  }
  w.splitting = 0;
}

void leave(FakeComm* c) {
  {
    const std::lock_guard lock(controls);
    --alive;
  }
  const std::shared_ptr<World> world = c->world;
  const std::lock_guard lock(world->mutex);
  world->comms[static_cast<std::size_t>(c->rank)] = nullptr;
  delete c;
}

}  // namespace

extern "C" {

void fake_nccl_reset(int v, int p) {
  const std::lock_guard lock(controls);
  version = v;
  polls = p;
  calls.clear();
  faults.clear();
  async_fault = {"", 0, -2};
}
void fake_nccl_fail(const char* name, int result, int rank) {
  const std::lock_guard lock(controls);
  faults.push_back({name, result, rank});
}
void fake_nccl_async(int result, int rank) {
  const std::lock_guard lock(controls);
  async_fault = {"", result, rank};
}
int fake_nccl_count(const char* name) {
  const std::lock_guard lock(controls);
  return calls[name];
}
int fake_nccl_alive() {
  const std::lock_guard lock(controls);
  return alive;
}

int ncclGetVersion(int* v) {
  const std::lock_guard lock(controls);
  *v = version;
  return kSuccess;
}
int ncclGetUniqueId(Id* id) {
  if (const int error = enter("ncclGetUniqueId", -1); error != kSuccess) return error;
  const std::lock_guard lock(controls);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes + 64, &++next_id, sizeof next_id);  // a short copy of the id would lose it
  return kSuccess;
}
int ncclCommInitRankConfig(void** comm, int ranks, Id id, int rank, void* config) {
  if (const int error = enter("ncclCommInitRankConfig", rank); error != kSuccess) return error;
  struct {
    std::size_t size;
    unsigned magic, version;
    int blocking;
  } head;
  std::memcpy(&head, config, 20);
  if (head.size < 20 || head.magic != 0xcafebeef || head.version < 21400 || head.blocking != 0) return kInvalidArgument;
  std::shared_ptr<World> world;
  int wanted_polls;
  {
    const std::lock_guard lock(controls);
    auto& entry = worlds[std::string(id.bytes, sizeof id.bytes)];
    world = entry.lock();
    if (!world) entry = world = world_of(ranks);
    wanted_polls = polls;
  }
  const std::lock_guard lock(world->mutex);
  if (!world->devices.insert(fake_runtime_device()).second) return kInvalidUsage;  // two ranks on one device
  *comm = make(world, rank, wanted_polls);
  return kInProgress;
}
#ifndef FAKE_NO_SPLIT
int ncclCommSplit(void* comm, int color, int key, void** made, void* config) {
  auto& c = *static_cast<FakeComm*>(comm);
  if (const int error = enter("ncclCommSplit", c.rank); error != kSuccess) return error;
  if (config != nullptr) return kInvalidArgument;
  int wanted_polls;
  {
    const std::lock_guard lock(controls);
    wanted_polls = polls;
  }
  World& w = *c.world;
  const std::lock_guard lock(w.mutex);
  if (c.polls > 0 || c.wanted != nullptr) return kInvalidUsage;
  *made = nullptr;
  c.wanted = reinterpret_cast<FakeComm**>(made);
  c.color = color;
  c.key = key;
  if (++w.splitting == w.size) divide(w, wanted_polls);
  return kInProgress;
}
#endif
int ncclCommFinalize(void* comm) {
  auto& c = *static_cast<FakeComm*>(comm);
  if (const int error = enter("ncclCommFinalize", c.rank); error != kSuccess) return error;
  const std::lock_guard lock(c.world->mutex);
  c.finalizing = true;
  ++c.world->finalized;
  return kInProgress;
}
int ncclCommDestroy(void* comm) {
  auto* c = static_cast<FakeComm*>(comm);
  enter("ncclCommDestroy", c->rank);
  leave(c);
  return kSuccess;
}
int ncclCommAbort(void* comm) {
  auto* c = static_cast<FakeComm*>(comm);
  enter("ncclCommAbort", c->rank);
  {
    std::unique_lock lock(c->world->mutex);
    c->aborted = c->world->dead = true;
    c->world->changed.notify_all();
    c->world->changed.wait(lock, [&] { return c->running == 0; });
  }
  leave(c);
  return kSuccess;
}
int ncclCommGetAsyncError(void* comm, int* result) {
  auto& c = *static_cast<FakeComm*>(comm);
  if (const int error = enter("ncclCommGetAsyncError", c.rank); error != kSuccess) return error;
  World& w = *c.world;
  const std::lock_guard lock(w.mutex);
  *result = kInProgress;
  if (c.async != 0 || w.broken != 0) {
    *result = c.async != 0 ? c.async : w.broken;
  } else if (w.joined < w.size || (c.finalizing && w.finalized < w.size)) {
  } else if (c.wanted != nullptr) {
    if (c.made != nullptr) {
      *c.wanted = std::exchange(c.made, nullptr);
      c.wanted = nullptr;
    }
  } else if (c.polls > 0) {
    if (--c.polls == 0 && !c.pending.empty()) submit(c);
  } else {
    *result = kSuccess;
  }
  return kSuccess;
}
int ncclCommCount(void* comm, int* count) {
  return *count = static_cast<FakeComm*>(comm)->world->size, kSuccess;
}
int ncclCommUserRank(void* comm, int* rank) {
  return *rank = static_cast<FakeComm*>(comm)->rank, kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == 2   ? "unhandled system error"
         : result == 6 ? "remote process exited or there was a network error"
                       : "fake NCCL error";
}
const char* ncclGetLastError(void*) {
  return "the last words";
}

int ncclGroupStart() {
  return ++depth, enter("ncclGroupStart", -1);
}
int ncclGroupEnd() {
  int result = enter("ncclGroupEnd", -1);
  if (--depth > 0) return result;
  for (const Batch& batch : std::exchange(batches, {}))
    if (const int code = hand_over(batch); result == kSuccess || code != kSuccess) result = code;
  return result;
}
int ncclAllReduce(const void* send, void* receive, std::size_t count, int type, int op, void* comm, void* stream) {
  return ask("ncclAllReduce", comm, stream, {"", send, receive, count, type, op, -1});
}
int ncclReduce(const void* send, void* receive, std::size_t count, int type, int op, int root, void* comm,
               void* stream) {
  return ask("ncclReduce", comm, stream, {"", send, receive, count, type, op, root});
}
int ncclReduceScatter(const void* send, void* receive, std::size_t count, int type, int op, void* comm, void* stream) {
  return ask("ncclReduceScatter", comm, stream, {"", send, receive, count, type, op, -1});
}
int ncclAllGather(const void* send, void* receive, std::size_t count, int type, void* comm, void* stream) {
  return ask("ncclAllGather", comm, stream, {"", send, receive, count, type, 0, -1});
}
int ncclBroadcast(const void* send, void* receive, std::size_t count, int type, int root, void* comm, void* stream) {
  return ask("ncclBroadcast", comm, stream, {"", send, receive, count, type, 0, root});
}
#ifndef FAKE_NO_SEND
int ncclSend(const void* data, std::size_t count, int type, int peer, void* comm, void* stream) {
  return ask("ncclSend", comm, stream, {"", data, nullptr, count, type, 0, peer});
}
#endif
int ncclRecv(void* data, std::size_t count, int type, int peer, void* comm, void* stream) {
  return ask("ncclRecv", comm, stream, {"", nullptr, data, count, type, 0, peer});
}

}  // extern "C"
