// Finds the blocks of model instances, which come and go as models are loaded and processes die.
#include "tritonserver/admission_blocks.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <vector>

namespace admission {
namespace {

constexpr double look_every_s = 0.1;

double now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
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

  std::string refused_by_all(const std::string& model, int64_t version, const Asked& asked) {
    if (folder_.empty()) return {};
    const std::lock_guard<std::mutex> guard(mutex_);
    const double at = now_s();
    if (at - looked_at_ >= look_every_s) look(at);
    std::vector<Block> of_model;
    for (const auto& [name, mapped] : mapped_) {
      if (is_of(mapped.block, model)) of_model.push_back(mapped.block);
    }
    if (version < 0) {
      for (const Block& block : of_model) {
        version = std::max(version, block.whole(model_version));
      }
    }
    const double chance = (at - static_cast<double>(static_cast<int64_t>(at)));
    std::vector<Block> refusing;
    std::string words;
    int64_t wanted = 1;
    for (const Block& block : of_model) {
      if (block.whole(model_version) != version || !is_fresh(block, at)) continue;
      std::string found =
          refusal(block, asked, at, 1000 * chance - static_cast<int>(1000 * chance));
      if (found.empty() || !has_room(block)) return {};
      if (refusing.empty()) words = std::move(found);
      wanted = std::max(wanted, block.whole(instances));
      refusing.push_back(block);
    }
    if (static_cast<int64_t>(refusing.size()) < wanted) return {};
    for (size_t place = 0; place < refusing.size(); ++place) {
      tell(refusing[place], asked.tenant, place == 0);
    }
    return words;
  }

 private:
  struct Mapped {
    ino_t inode;
    Block block;
  };

  static bool is_of(const Block& block, const std::string& model) {
    return block.acquire(version_word) == admission::version && model.size() <= most_name_bytes &&
           block.whole(name_bytes) == static_cast<int64_t>(model.size()) &&
           memcmp(block.text(name), model.data(), model.size()) == 0;
  }

  static bool has_room(const Block& block) {
    return block.acquire(head) - block.acquire(tail) < ring_entries;
  }

  // Which tenant asked; of several instances one counts it.
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
    if (stat(folder_.c_str(), &folder) != 0) return;
    if (folder.st_mtim.tv_sec == changed_.tv_sec && folder.st_mtim.tv_nsec == changed_.tv_nsec) {
      return;
    }
    changed_ = folder.st_mtim;
    std::map<std::string, Mapped> found;
    if (DIR* const entries = opendir(folder_.c_str())) {
      while (const dirent* entry = readdir(entries)) {
        const std::string each = entry->d_name;
        if (each.compare(0, prefix_.size(), prefix_) == 0) take(each, &found);
      }
      closedir(entries);
    }
    for (const auto& [name, gone] : mapped_) munmap(gone.block.memory(), bytes);
    mapped_ = std::move(found);
  }

  // Maps a file, or takes its mapping over.
  void take(const std::string& name, std::map<std::string, Mapped>* found) {
    const int file = open((folder_ + name).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) return;
    struct stat about = {};
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
        about.st_size == static_cast<off_t>(bytes)) {
      const auto known = mapped_.find(name);
      if (known != mapped_.end() && known->second.inode == about.st_ino) {
        found->insert(mapped_.extract(known));
      } else {
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory != MAP_FAILED) found->insert({name, {about.st_ino, Block(memory)}});
      }
    }
    close(file);
  }

  std::string folder_, prefix_;
  std::mutex mutex_;  // over what follows
  std::map<std::string, Mapped> mapped_;
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

std::string refused_by_all(const std::string& model, int64_t version, const Asked& asked) {
  return blocks().refused_by_all(model, version, asked);
}

}  // namespace admission
