// Loaded before a program (LD_PRELOAD), of which it makes one that reads command lines from stdin and forks
// for each: LibTorch registers its operations once, a quarter of a second each time. A child is the program
// itself, its own main() with the arguments that were read. Read are, each with a zero byte at its end: the
// folder, the files for stdout and stderr, the number of arguments, the arguments. Written is the exit code,
// a line each, as a shell has it.
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <iostream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);
Main program_main = nullptr;

bool read_word(std::string& word) {
  return static_cast<bool>(std::getline(std::cin, word, '\0'));
}

void open_as(const char* path, int flags, int descriptor) {
  const int opened = open(path, flags | O_CLOEXEC, 0666);
  if (opened < 0 || dup2(opened, descriptor) < 0) _exit(125);
}

int serve(int /*argc*/, char** argv, char** environment) {
  unsetenv("LD_PRELOAD");
  std::string folder, output, errors, count;
  while (read_word(folder) && read_word(output) && read_word(errors) && read_word(count)) {
    std::vector<std::string> words(std::stoul(count));
    for (std::string& word : words) read_word(word);
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(folder.c_str()) != 0) _exit(125);
      open_as("/dev/null", O_RDONLY, STDIN_FILENO);
      open_as(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
      open_as(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
      std::vector<char*> arguments{argv[0]};
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      std::exit(program_main(static_cast<int>(words.size()) + 1, arguments.data(), environment));
    }
    int status = 125 << 8;
    if (child > 0) waitpid(child, &status, 0);
    std::printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

/// glibc's, which calls main().
extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*begin)(), void (*end)(),
                                 void (*unload)(), void* stack) {
  program_main = main;
  const auto start = reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(serve, argc, argv, begin, end, unload, stack);
}
