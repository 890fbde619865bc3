// Finds the blocks of model instances, which come and go as models are loaded and processes die.
#include "tritonserver/admission_blocks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace admission {
namespace {

constexpr double look_every_s = 0.1;
// A folder that is changed twice within this time may have the same modification time; it is longer
// than a jiffy.
constexpr double tick_s = 0.02;
// The characters of a file's name that identify the model (published_block.py).
constexpr size_t model_characters = 24;

double seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return seconds(now);
}

class Blocks {
 public:
  void watch(const char* prefix) {
    const std::string path = prefix;
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return;
    folder_ = path.substr(0, slash + 1);
    prefix_ = path.substr(slash + 1);
  }

  Judged judged(const std::string& model, int64_t version) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const double at = now_s();
    Judged found;
    for (const Mapped* const each : fresh(model, version, at)) {
      const Block& block = each->block;
      found.generates = block.acquire(layout) == generation;
      found.most_rows = std::max(found.most_rows, block.whole(admission::most_rows));
      found.takes |= block.whole(admission::takes);
      found.image_height = block.whole(admission::image_height);
      found.image_width = block.whole(admission::image_width);
    }
    return found;
  }

  std::string refused_by_all(const std::string& model, int64_t version, const Asked& asked) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const double at = now_s();
    const double at_ms = 1000 * at,
                 chance = at_ms - static_cast<double>(static_cast<int64_t>(at_ms));
    const std::vector<Mapped*> asking = fresh(model, version, at);
    std::string words;
    int64_t wanted = 1;
    for (Mapped* const each : asking) {
      const Block& block = each->block;
      // With several instances it is not known which one gets a request.
      const bool is_only = asking.size() == 1 && block.acquire(layout) == encoder;
      OnTheWay on_the_way;
      if (is_only) {
        each->on_the_way.forget(static_cast<int64_t>(block.real(judgements)), at);
        on_the_way = each->on_the_way.before(asked.priority, asked.tenant);
      }
      Judgement found = judgement(block, asked, on_the_way, at, chance);
      wanted = std::max(wanted, block.whole(instances));
      if (found.words.empty() || !has_room(block) || static_cast<int64_t>(asking.size()) < wanted) {
        if (is_only && found.seconds > 0) {
          each->on_the_way.add(at, found.seconds, asked.priority, asked.tenant);
        }
        return {};
      }
      if (words.empty()) words = std::move(found.words);
    }
    for (size_t place = 0; place < asking.size(); ++place) {
      tell(asking[place]->block, asked.tenant, place == 0);
    }
    return words;
  }

 private:
  struct Mapped {
    ino_t inode;
    size_t bytes;
    Block block;
    RequestsOnTheWay on_the_way;
  };

  // Returns the blocks of a model's version that were updated lately. For the latest version (-1)
  // the result is empty unless every served version has a block.
  std::vector<Mapped*> fresh(const std::string& model, int64_t version, double at) {
    if (folder_.empty()) return {};
    if (at - looked_at_ >= look_every_s) look(at);
    std::vector<Mapped*> of_model;
    for (auto& [file, mapped] : mapped_) {
      if (!is_of(mapped.block, model)) continue;
      of_model.push_back(&mapped);
      if (version < 0 && unknown_.count(file.substr(0, prefix_.size() + model_characters)) != 0) {
        return {};
      }
    }
    if (version < 0) {
      for (const Mapped* const each : of_model) {
        version = std::max(version, each->block.whole(model_version));
      }
    }
    std::vector<Mapped*> found;
    for (Mapped* const each : of_model) {
      const Block& block = each->block;
      if (block.whole(model_version) == version && is_fresh(block, at)) found.push_back(each);
    }
    return found;
  }

  static bool is_of(const Block& block, const std::string& model) {
    const uint64_t kind = block.acquire(layout);
    return (kind == encoder || kind == generation) && model.size() <= most_name_bytes &&
           block.whole(name_bytes) == static_cast<int64_t>(model.size()) &&
           memcmp(block.text(name), model.data(), model.size()) == 0;
  }

  static bool has_room(const Block& block) {
    return block.acquire(head) - block.acquire(tail) < ring_entries;
  }

  // Appends the tenant to the block's ring. If there are several instances, only one of them counts
  // it.
  static void tell(Block block, const std::string& tenant, bool counts) {
    const uint64_t number = block.acquire(head);
    const size_t first = ring + number % ring_entries * ring_words;
    memcpy(block.text(first + 1), tenant.data(), tenant.size());
    block.release(first, tenant.size() << 1 | (counts ? 1 : 0));
    block.release(head, number + 1);
  }

  void look(double at) {
    looked_at_ = at;
    struct stat folder = {};
    timespec now;
    if (stat(folder_.c_str(), &folder) != 0) return;
    if (folder.st_mtim.tv_sec == changed_.tv_sec && folder.st_mtim.tv_nsec == changed_.tv_nsec) {
      return;
    }
    DIR* const entries = opendir(folder_.c_str());
    if (entries == nullptr) return;
    clock_gettime(CLOCK_REALTIME, &now);
    bool complete = seconds(now) - seconds(folder.st_mtim) > tick_s;
    std::map<std::string, Mapped> found;
    unknown_.clear();
    while (const dirent* entry = readdir(entries)) {
      const std::string each = entry->d_name;
      if (each.compare(0, prefix_.size(), prefix_) != 0 || is_unseen(each)) continue;
      complete &= take(each, &found);
      if (found.count(each) == 0) {
        unknown_.insert(each.substr(0, prefix_.size() + model_characters));
      }
    }
    closedir(entries);
    if (complete) changed_ = folder.st_mtim;
    for (const auto& [name, gone] : mapped_) munmap(gone.block.memory(), gone.bytes);
    mapped_ = std::move(found);
  }

  // Returns whether a block is still being written: it is renamed when it is complete.
  static bool is_unseen(const std::string& name) {
    const std::string end = ".new";
    return name.size() >= end.size() &&
           name.compare(name.size() - end.size(), end.size(), end) == 0;
  }

  // Maps a file, or moves its existing mapping to `found`. Returns false if a lack of resources
  // prevented it, so that it must be tried again.
  bool take(const std::string& name, std::map<std::string, Mapped>* found) {
    const auto known = mapped_.find(name);
    const int file = open((folder_ + name).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) {
      const bool lacks = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
      if (lacks && known != mapped_.end()) found->insert(mapped_.extract(known));
      return !lacks;
    }
    struct stat about = {};
    bool lacks = false;
    const bool is_own =
        fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid();
    const size_t bytes = static_cast<size_t>(about.st_size);
    if (is_own && (bytes == encoder_bytes || bytes == generation_bytes)) {
      if (known != mapped_.end() && known->second.inode == about.st_ino) {
        found->insert(mapped_.extract(known));
      } else {
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        lacks = memory == MAP_FAILED;
        if (!lacks) found->insert({name, {about.st_ino, bytes, Block(memory), {}}});
      }
    }
    close(file);
    return !lacks;
  }

  std::string folder_, prefix_;
  std::mutex mutex_;  // guards the following members
  std::map<std::string, Mapped> mapped_;
  // Beginnings of the names of files that have no block of a version, or none that can be read.
  std::set<std::string> unknown_;
  timespec changed_ = {};
  double looked_at_ = -look_every_s;
};

Blocks& blocks() {
  static auto& found = *new Blocks;  // threads outlive main()
  return found;
}

}  // namespace

void watch_blocks(const char* prefix) {
  blocks().watch(prefix);
}

Judged judged_of(const std::string& model, int64_t version) {
  return blocks().judged(model, version);
}

std::string refused_by_all(const std::string& model, int64_t version, const Asked& asked) {
  return blocks().refused_by_all(model, version, asked);
}

}  // namespace admission
