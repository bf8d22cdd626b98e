#include "launch/group_reader.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <numeric>

#include "base/error.h"
#include "launch/checkpointing.h"

namespace molen::launch {
namespace {

std::size_t unsigned_of(int rank) {
  return static_cast<std::size_t>(rank);
}

// Returns every rank's numbers, by rank. Collective.
std::vector<std::vector<std::int64_t>> gather_numbers(const std::vector<std::int64_t>& own, comm::Communicator& group) {
  const std::vector<std::int64_t> ones(unsigned_of(group.size()), 1);
  std::vector<std::int64_t> counts(ones.size());
  const auto count = static_cast<std::int64_t>(own.size());
  group.all_gather(&count, counts.data(), ones, DType::kI64);
  std::vector<std::int64_t> all(
      static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
  group.all_gather(own.data(), all.data(), counts, DType::kI64);
  std::vector<std::vector<std::int64_t>> by_rank;
  auto at = all.begin();
  for (const std::int64_t n : counts) by_rank.emplace_back(at, at + n), at += n;
  return by_rank;
}

// Makes a buffer large enough for messages of these sizes.
void make_room(std::vector<char>& buffer, const std::vector<std::int64_t>& sizes) {
  const auto bytes = static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
  if (buffer.size() < bytes) buffer.resize(bytes);
}

}  // namespace

GroupReader::GroupReader(const checkpoint::Checkpoint& from, std::vector<arch::Parameter> parameters,
                         std::vector<std::string> prefixes, comm::Communicator& group, std::int64_t round_bytes)
    : from_(from),
      parameters_(std::move(parameters)),
      prefixes_(std::move(prefixes)),
      group_(group),
      round_bytes_(round_bytes),
      bytes_read_(unsigned_of(group.size()), 0) {}

// Returns what all ranks need, by parameter.
std::vector<GroupReader::Needs> GroupReader::gather(std::span<const program::GlobalBox> needed) {
  std::vector<std::int64_t> own;
  for (const program::GlobalBox& g : needed) {
    own.push_back(g.parameter);
    own.insert(own.end(), g.box.offsets.begin(), g.box.offsets.end());
    own.insert(own.end(), g.box.sizes.begin(), g.box.sizes.end());
  }
  const auto by_rank = gather_numbers(own, group_);
  std::vector<Needs> needs(parameters_.size());
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::vector<std::int64_t>& numbers = by_rank[unsigned_of(rank)];
    std::size_t number = 0;
    for (auto at = numbers.begin(); at != numbers.end(); ++number) {
      const auto parameter = static_cast<std::size_t>(*at++);
      const auto dimensions = static_cast<std::ptrdiff_t>(parameters_.at(parameter).shape.size());
      Needs& n = needs[parameter];
      n.boxes.push_back({{at, at + dimensions}, {at + dimensions, at + 2 * dimensions}});
      n.ranks.push_back(rank);
      n.numbers.push_back(number);
      at += 2 * dimensions;
    }
  }
  return needs;
}

// Returns the rank that reads a block. Candidates are the ranks that need at least half as much of it as the rank that
// needs most; the one that has read the least so far is chosen. Tensor ranks need about the same amount of each block,
// so they share the reading. A rank that needs only a little of a block, at the end of its shard, does not read it for
// the others.
int GroupReader::choose_reader(const Assigned& candidate) const {
  std::map<int, std::int64_t> elements;
  for (const auto& part : candidate.block.parts) elements[candidate.rank_of(part)] += part.part.elements();
  std::int64_t most = 0;
  for (const auto& [rank, n] : elements) most = std::max(most, n);
  int reader = -1;
  for (const auto& [rank, n] : elements)
    if (2 * n >= most && (reader < 0 || bytes_read_[unsigned_of(rank)] < bytes_read_[unsigned_of(reader)]))
      reader = rank;
  return reader;
}

// Returns all blocks that some rank needs, with their readers: the same on every rank.
std::vector<GroupReader::Assigned> GroupReader::assign(const std::vector<Needs>& needs) {
  std::vector<Assigned> blocks;
  for (std::size_t prefix = 0; prefix < prefixes_.size(); ++prefix)
    for (std::size_t p = 0; p < needs.size(); ++p) {
      if (needs[p].boxes.empty()) continue;
      const std::string name = prefixes_[prefix] + parameters_[p].name;
      const auto& stored = from_.tensor(name);
      if (stored.shape != parameters_[p].shape)
        throw UsageError("{}: tensor {} has another shape than the model", from_.path().string(), name);
      for (auto& block : from_.blocks(name, needs[p].boxes)) {
        Assigned& a = blocks.emplace_back(Assigned{prefix, name, &needs[p], std::move(block), stored.dtype, 0});
        a.reader = choose_reader(a);
        bytes_read_[unsigned_of(a.reader)] += a.bytes();
      }
    }
  return blocks;
}

// Distributes blocks over rounds. Each rank reads its blocks in order. In a round it reads as many as fit into
// round_bytes_, for itself and for each rank that it sends to.
std::vector<GroupReader::Round> GroupReader::rounds(const std::vector<Assigned>& blocks) const {
  std::vector<std::deque<const Assigned*>> queues(unsigned_of(group_.size()));
  for (const Assigned& a : blocks) queues[unsigned_of(a.reader)].push_back(&a);
  std::vector<Round> rounds;
  for (std::size_t left = blocks.size(); left > 0; left -= rounds.back().size()) {
    Round& round = rounds.emplace_back();
    std::vector<std::int64_t> received(queues.size(), 0);
    for (auto& queue : queues)
      for (std::int64_t read = 0; !queue.empty(); queue.pop_front()) {
        const Assigned& next = *queue.front();
        std::map<int, std::int64_t> sent;
        for (const auto& part : next.block.parts)
          if (const int rank = next.rank_of(part); rank != next.reader) sent[rank] += next.bytes_of(part);
        const auto fits = [&](std::int64_t before, std::int64_t more) {
          return before == 0 || before + more <= round_bytes_;
        };
        if (!fits(read, next.bytes()) || !std::all_of(sent.begin(), sent.end(), [&](const auto& s) {
              return fits(received[unsigned_of(s.first)], s.second);
            }))
          break;
        for (const auto& [rank, n] : sent) received[unsigned_of(rank)] += n;
        read += next.bytes();
        round.push_back(&next);
      }
  }
  return rounds;
}

// Reads this rank's blocks of a round, and writes the parts for rank r into sent_ from places[r] on, in the order of
// the round.
void GroupReader::read_own(const Round& round, std::vector<std::int64_t> places, const Take& take) {
  for (const Assigned* a : round) {
    if (a->reader != group_.rank()) continue;
    const std::vector<char> content = from_.content(a->tensor, a->block);
    for (const auto& part : a->block.parts) {
      const char* data = content.data() + part.first * size_of(a->dtype);
      const int to = a->rank_of(part);
      if (to == a->reader) {
        take({a->prefix, a->needs->numbers[part.wanted], part.part, part.held, a->dtype, data});
        continue;
      }
      std::int64_t& place = places[unsigned_of(to)];
      copy_box(part.part, part.held, data, part.part, sent_.data() + place, size_of(a->dtype));
      place += a->bytes_of(part);
    }
  }
}

// Reads the blocks of a round and exchanges their parts. Returns false when another rank could not read.
bool GroupReader::run(const Round& round, const Take& take) {
  const int rank = group_.rank();
  std::vector<std::int64_t> sends(unsigned_of(group_.size()), 0), receives(sends), places(sends);
  bool exchange = false;
  for (const Assigned* a : round)
    for (const auto& part : a->block.parts) {
      const int to = a->rank_of(part);
      if (to == a->reader) continue;
      exchange = true;
      if (a->reader == rank) sends[unsigned_of(to)] += a->bytes_of(part);
      if (to == rank) receives[unsigned_of(a->reader)] += a->bytes_of(part);
    }
  make_room(sent_, sends), make_room(received_, receives);
  std::exclusive_scan(sends.begin(), sends.end(), places.begin(), std::int64_t{0});

  std::exception_ptr failure;
  try {
    read_own(round, std::move(places), take);
  } catch (...) {
    failure = std::current_exception();
  }
  const bool all = agree_over(group_)(!failure);
  if (failure) std::rethrow_exception(failure);
  if (!all || !exchange) return all;
  group_.all_to_all(sent_.data(), sends, received_.data(), receives, DType::kU8);
  const char* at = received_.data();
  for (const Assigned* a : round)  // in the order of the readers, because their messages follow each other in received_
    for (const auto& part : a->block.parts)
      if (a->reader != rank && a->rank_of(part) == rank) {
        take({a->prefix, a->needs->numbers[part.wanted], part.part, part.part, a->dtype, at});
        at += a->bytes_of(part);
      }
  return true;
}

bool GroupReader::read(std::span<const program::GlobalBox> needed, const Take& take) {
  const std::vector<Needs> needs = gather(needed);
  const std::vector<Assigned> blocks = assign(needs);
  for (const Round& round : rounds(blocks))
    if (!run(round, take)) return false;
  return true;
}

}  // namespace molen::launch
